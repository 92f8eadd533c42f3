"""An explorer of weak memory: every outcome that a few short programs can have, under a processor's rules.

A process is a list of instructions on shared words and on registers of its own. An instruction is carried out
at one moment, and a store is seen by all processes at once (x86-64 and ARMv8 are such: "multi-copy atomic").
What is weak is the order: an instruction may be carried out before earlier ones of its process, unless the
processor's rules (`Rules`) order the two. A load may also take its value from an earlier store of its own
process that is not carried out yet, as store buffers do.

`outcomes` tries every order, and gives every set of registers and words at the end, and whether a process
waits for ever.

Sources: the rules of x86-64 are those of P. Sewell et al., "x86-TSO" (CACM 2010); those of ARMv8 are a subset
of C. Pulte et al., "Simplifying ARM Concurrency" (POPL 2018), on the weak side wherever this is coarser: a
release store and a later acquire load are not ordered, and no dependency orders two loads unless an
instruction names it.

Limits: three things are stronger here than ARM. Two loads of one word are always in order (ARM lets them pass
each other where both read the same store). A store under a condition orders what it would also where that
condition fails, and gives nothing to a later load of its word before that is known. A `Sleep` is a
fence also where it does not sleep. So put conditions and sleeps last in a program, as the protocols here do.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Registers = Mapping[str, int]
Value = int | Callable[[Registers], int]

NEVER = "waits for ever"
"""The register that is 1 at the end where a process waits for ever."""


class Order(enum.Enum):
    """What an access promises beyond itself."""

    relaxed = "nothing"
    acquire = "a load: what comes behind it is carried out later"
    release = "a store: what comes before it is carried out earlier"
    past_cache = "a store that is written past the cache: it is ordered with nothing but fences"


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        needs: registers of the process that have to be known before.
    """

    needs: frozenset[str] = field(default=frozenset(), kw_only=True)


@dataclass(frozen=True)
class Load(Instruction):
    """Load a word into a register.

    Attributes:
        until: it is repeated until the value satisfies this: a loop, of which only the last look counts.
    """

    register: str
    word: str
    order: Order = Order.relaxed
    until: Callable[[int], bool] | None = None


@dataclass(frozen=True)
class Store(Instruction):
    """Store a value into a word, where a condition on registers holds."""

    word: str
    value: Value
    order: Order = Order.relaxed
    where: Callable[[Registers], bool] | None = None


@dataclass(frozen=True)
class Fence(Instruction):
    """Order everything before it with everything behind it."""


@dataclass(frozen=True)
class Sleep(Instruction):
    """Wait until a word is not 0, where a condition on registers holds. It is a call of the system, and so a
    fence, too."""

    word: str
    where: Callable[[Registers], bool]


Program = Sequence[Instruction]


class Rules(enum.Enum):
    """Which instructions of one process a processor keeps in order."""

    sequential = "all"
    x86 = "all but a store and a later load of another word"
    arm = "accesses to one word, and what acquire, release, fences and dependencies order"

    def ordered(self, first: Instruction, second: Instruction) -> bool:
        """Whether an instruction is carried out before a later one of its process."""
        if isinstance(first, Fence | Sleep) or isinstance(second, Fence | Sleep) or self is Rules.sequential:
            return True
        assert isinstance(first, Load | Store)
        assert isinstance(second, Load | Store)
        if first.word == second.word:
            return True
        if Order.past_cache in (first.order, second.order) and not isinstance(second, Load):
            return isinstance(first, Load) and self is Rules.x86
        if self is Rules.x86:
            return not (isinstance(first, Store) and isinstance(second, Load))
        if first.order is Order.acquire or second.order is Order.release:
            return True
        # A store is not carried out while it is open whether an earlier loop goes on (a control dependency).
        return isinstance(first, Load) and first.until is not None and isinstance(second, Store)


@dataclass(frozen=True)
class _State:
    memory: tuple[tuple[str, int], ...]
    done: tuple[int, ...]  # a bit for each instruction, by process
    registers: tuple[tuple[tuple[str, int], ...], ...]


def outcomes(
    rules: Rules, programs: Sequence[Program], first: Mapping[str, int] | None = None
) -> set[tuple[tuple[str, int], ...]]:
    """Every outcome: the registers of all processes at the end, by name, and the words as 'final NAME'. The
    names of registers differ between processes.

    Args:
        rules: the processor's.
        programs: of the processes.
        first: words that are not 0 at first.
    """
    before = [
        [
            sum(1 << first for first in range(second) if _precedes(rules, program, first, second))
            for second in range(len(program))
        ]
        for program in programs
    ]
    everything = (one for program in programs for one in program)
    memory = {one.word: 0 for one in everything if isinstance(one, Load | Store | Sleep)} | dict(first or {})
    start = _State(tuple(sorted(memory.items())), (0,) * len(programs), ((),) * len(programs))
    seen, open_states, found = {start}, [start], set()
    while open_states:
        state = open_states.pop()
        following = list(_steps(programs, before, state))
        if not following:
            over = all(
                done == (1 << len(program)) - 1 for done, program in zip(state.done, programs, strict=True)
            )
            registers = [pair for process in state.registers for pair in process]
            words = [(f"final {word}", value) for word, value in state.memory]
            found.add(tuple(sorted([*registers, *words, (NEVER, int(not over))])))
        for one in following:
            if one not in seen:
                seen.add(one)
                open_states.append(one)
    return found


def _precedes(rules: Rules, program: Program, first: int, second: int) -> bool:
    one, other = program[first], program[second]
    if isinstance(one, Load) and one.register in other.needs:
        return True
    forwards = isinstance(one, Store) and isinstance(other, Load) and one.word == other.word
    if forwards and rules is not Rules.sequential:
        return False  # it waits for the store, or takes its value: see `_steps`
    return rules.ordered(one, other)


def _steps(programs: Sequence[Program], before: list[list[int]], state: _State) -> Iterator[_State]:
    """What can happen next, as the states behind it."""
    memory = dict(state.memory)
    for process, program in enumerate(programs):
        done = state.done[process]
        registers = dict(state.registers[process])
        for number in range(len(program)):
            if done >> number & 1 or before[process][number] & ~done:
                continue
            for words, known in _carry_out(program, number, done, memory, registers):
                yield _State(
                    tuple(sorted(words.items())),
                    _replaced(state.done, process, done | 1 << number),
                    _replaced(state.registers, process, tuple(sorted(known.items()))),
                )


def _replaced(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])


def _carry_out(
    program: Program, number: int, done: int, memory: dict[str, int], registers: dict[str, int]
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Memory and registers behind an instruction; nothing where it has to wait."""
    instruction = program[number]
    if isinstance(instruction, Load):
        value = _loaded(program, number, done, memory, registers)
        if value is not None and (instruction.until is None or instruction.until(value)):
            yield memory, registers | {instruction.register: value}
    elif isinstance(instruction, Store):
        if instruction.where is None or instruction.where(registers):
            value = instruction.value if isinstance(instruction.value, int) else instruction.value(registers)
            yield memory | {instruction.word: value}, registers
        else:
            yield memory, registers
    elif isinstance(instruction, Sleep):
        if not instruction.where(registers) or memory[instruction.word]:
            yield memory, registers
    else:
        yield memory, registers


def _loaded(
    program: Program, number: int, done: int, memory: dict[str, int], registers: dict[str, int]
) -> int | None:
    """The value of a load: that of the last earlier store of its process to the word that is not carried out
    yet, else memory's. None where that store is not decided."""
    load = program[number]
    assert isinstance(load, Load)
    for earlier in range(number - 1, -1, -1):
        store = program[earlier]
        if isinstance(store, Store) and store.word == load.word and not done >> earlier & 1:
            if store.needs - registers.keys():
                return None
            if store.where is not None and not store.where(registers):
                continue
            return store.value if isinstance(store.value, int) else store.value(registers)
    return memory[load.word]
