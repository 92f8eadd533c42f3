"""Proof that the schedules of all ranks together do what their operation promises.

The prover runs the ranks without data. A chunk holds not a number but an expression: which ranks'
values were combined, in which order. The execution is the strictest that an executor may choose:
ranks proceed independently, a message is transferred only once both ends have reached its round
(nothing is buffered), and a round ends when all its messages are through. What completes here
completes on every transport.

With two buffers the block that rank i has for rank j is a symbol of its own. Inputs are tuples, which
nothing can write, and a block must land in the place that is made for it, or its size might not fit.

The order in which ranks proceed is an argument. By rules 4 and 5 of `steps` it cannot matter to the
outcome; the tests choose it at random and see that it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiodist.backends.schedules.steps import Recv, RecvReduce, Schedule, Send, Step, spans
from aiodist.base.operations import ROLES, Parts, origins
from aiodist.base.types import NO_ROOT, Kind

Pick = Callable[[int], int]  # the number of ranks that could go next → the one that does


class ScheduleError(Exception):
    """Schedules that break a rule, or do not compute what they promise."""


@dataclass(frozen=True)
class Proof:
    """The facts that are proved of schedules that passed.

    Attributes:
        rounds: of the longest schedule.
        sent: chunks sent by each rank.
        depth: the most reductions that a value passes through; bounds the rounding of half precision.
    """

    rounds: int
    sent: tuple[int, ...]
    depth: int


class _Expressions:
    """Ordered reduction trees, hash-consed: equal trees have equal numbers. 0 … count-1 are leaves."""

    def __init__(self, count: int) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._leaves: list[tuple[int, ...]] = [(leaf,) for leaf in range(count)]
        self._depths = [0] * count

    def combine(self, left: int, right: int) -> int:
        number = self._numbers.get((left, right))
        if number is None:
            number = self._numbers[left, right] = len(self._leaves)
            self._leaves.append(self._leaves[left] + self._leaves[right])
            self._depths.append(1 + max(self._depths[left], self._depths[right]))
        return number

    def leaves(self, number: int) -> tuple[int, ...]:
        """Origins from left to right."""
        return self._leaves[number]

    def depth(self, number: int) -> int:
        return self._depths[number]


class _Run:
    """One symbolic execution."""

    def __init__(self, kind: Kind, schedules: Sequence[Schedule], root: int) -> None:
        self.schedules = schedules
        self.size = size = len(schedules)
        self.chunks = chunks = schedules[0].chunks
        roles = ROLES[kind]
        self.two_buffers = roles.source is roles.target is Parts.EACH
        self.expressions = _Expressions(size * size if self.two_buffers else size)
        self.inputs: list[tuple[int, ...]] = []  # with two buffers: what rank has for each rank
        self.held: list[list[int | None]] = [[rank] * chunks for rank in range(size)]
        if self.two_buffers:
            self.inputs = [tuple(range(rank * size, (rank + 1) * size)) for rank in range(size)]
            self.held = [
                [block if c == rank else None for c, block in enumerate(blocks)]
                for rank, blocks in enumerate(self.inputs)
            ]
        elif roles.source is Parts.ONE and roles.target is Parts.EACH:
            self.held = [[rank if c == rank else None for c in range(chunks)] for rank in range(size)]
        elif roles.cut and roles.root_gives:
            self.held = [[rank if rank == root else None] * chunks for rank in range(size)]
        self.heard = [1 << rank for rank in range(size)]  # bit r: has heard of rank r
        self.reductions = [0] * self.chunks
        self.sent = [0] * size
        self._round = [-1] * size
        self._open = [0] * size  # messages of the present round that are not through
        self._offers: dict[tuple[int, int, int], tuple[Send, list[int | None], int]] = {}
        self._wants: dict[tuple[int, int, int], Recv | RecvReduce] = {}

    def execute(self, pick: Pick) -> None:
        ready = list(range(self.size))
        while ready:
            rank = ready.pop(pick(len(ready)))
            self._round[rank] += 1
            index = self._round[rank]
            if index == len(self.schedules[rank].rounds):
                continue
            ready += self._enter(rank, index)
        self._check_ended()

    def _enter(self, rank: int, index: int) -> list[int]:
        """Post the steps of a round; returns the ranks whose rounds are thereby done."""
        steps = self.schedules[rank].rounds[index]
        check_round(rank, index, self.size, self.chunks, steps, two_buffers=self.two_buffers)
        self._open[rank] = len(steps)
        done = [] if steps else [rank]
        for step in steps:
            if isinstance(step, Send):
                key = (rank, step.peer, index)
                source: Sequence[int | None] = self.inputs[rank] if self.two_buffers else self.held[rank]
                before = [source[chunk] for chunk in covered(step, self.chunks)]
                self._offers[key] = (step, before, self.heard[rank])
                self.sent[rank] += step.stop - step.start
            else:
                key = (step.peer, rank, index)
                self._wants[key] = step
            if key in self._offers and key in self._wants:
                self._transfer(key)
                done += [end for end in key[:2] if self._finished_one(end)]
        return done

    def _finished_one(self, rank: int) -> bool:
        self._open[rank] -= 1
        return self._open[rank] == 0

    def _transfer(self, key: tuple[int, int, int]) -> None:
        source, rank, index = key
        send, values, heard = self._offers.pop(key)
        step = self._wants.pop(key)
        alike = (
            send.stop - send.start == step.stop - step.start
            if self.two_buffers
            else (send.start, send.stop) == (step.start, step.stop)
        )
        if not alike:
            raise ScheduleError(f"round {index}: rank {source} sends {send}, rank {rank} expects {step}")
        mine = self.held[rank]
        for chunk, value in zip(covered(step, self.chunks), values, strict=True):
            if self.two_buffers and value != self.inputs[chunk][rank]:
                raise ScheduleError(
                    f"round {index}: what rank {source} sends is not what rank {chunk} has for rank {rank}"
                )
            if value is None:
                raise ScheduleError(f"round {index}: rank {source} sends chunk {chunk} before it has it")
            if isinstance(step, RecvReduce):
                own = mine[chunk]
                if own is None:
                    raise ScheduleError(
                        f"round {index}: rank {rank} reduces into chunk {chunk} before it has it"
                    )
                value = self.expressions.combine(*((value, own) if step.left else (own, value)))
                self.reductions[chunk] += 1
            mine[chunk] = value
        self.heard[rank] |= heard

    def _check_ended(self) -> None:
        stuck = [f"{source}→{rank} in round {index}" for source, rank, index in self._offers | self._wants]
        if stuck:
            raise ScheduleError(f"these messages have only one end: {', '.join(sorted(stuck))}")


def covered(step: Step, chunks: int) -> Sequence[int]:
    """The chunks that a step covers, in the order of the wire."""
    if step.stop <= chunks:
        return range(step.start, step.stop)
    return [chunk for start, stop in spans(step.start, step.stop, chunks) for chunk in range(start, stop)]


def check_round(
    rank: int, index: int, size: int, chunks: int, steps: tuple[Step, ...], *, two_buffers: bool
) -> None:
    """Check rules 2 and 4 to 7 of `steps` for one round of one rank; raises `ScheduleError`."""
    where = f"rank {rank}, round {index}"
    written: set[int] = set()
    ends: set[tuple[bool, int]] = set()
    receiving = False
    for step in steps:
        sending = isinstance(step, Send)
        if not 0 <= step.peer < size or step.peer == rank:
            raise ScheduleError(f"{where}: {step} has no such peer")
        if not 0 <= step.start < chunks or not step.start <= step.stop <= step.start + chunks:
            raise ScheduleError(f"{where}: {step} leaves the buffer of {chunks} chunks")
        if two_buffers and isinstance(step, RecvReduce):
            raise ScheduleError(f"{where}: {step} reduces, where there are two buffers")
        if (sending, step.peer) in ends:
            raise ScheduleError(f"{where}: a second message with rank {step.peer} in one direction")
        ends.add((sending, step.peer))
        if sending and receiving:
            raise ScheduleError(f"{where}: a send stands after a receive")
        if not sending:
            receiving = True
            span = covered(step, chunks)
            if not written.isdisjoint(span):
                raise ScheduleError(f"{where}: two steps write chunk {min(written.intersection(span))}")
            written.update(span)
    for step in steps:
        if isinstance(step, Send) and not step.copy and not two_buffers:
            torn = written.intersection(covered(step, chunks))
            if torn:
                raise ScheduleError(f"{where}: chunk {min(torn)} is sent while it is written")


def prove(
    kind: Kind, schedules: Sequence[Schedule], root: int = NO_ROOT, pick: Pick = lambda ready: 0
) -> Proof:
    """Prove that schedules carry out an operation.

    Shown is: no rule of `steps` is broken; nothing deadlocks, also without any buffering; every rank
    that is promised a result has it; every rank's value is in it exactly once; the root of a broadcast
    or scatter is only read; for all_reduce, all ranks hold the identical expression, and either it was
    computed once and handed out, or it combines the ranks in order (law 3: one answer).

    Args:
        kind: the operation that the schedules promise.
        schedules: those of all ranks, by rank.
        root: for broadcast, reduce, gather and scatter.
        pick: chooses which of n ranks proceeds next, 0 ≤ result < n.

    Raises:
        ScheduleError: with the first thing that is wrong.
    """
    if len({schedule.chunks for schedule in schedules}) != 1:
        raise ScheduleError("ranks divide the buffer differently")
    _check_form(kind, schedules, root)
    run = _Run(kind, schedules, root)
    run.execute(pick)
    for rank in range(run.size):
        _check_result(kind, run, rank, root)
    if kind is Kind.all_reduce:
        _check_one_answer(run)
    final = [value for held in run.held for value in held if value is not None]
    return Proof(
        rounds=max(len(schedule.rounds) for schedule in schedules),
        sent=tuple(run.sent),
        depth=max(map(run.expressions.depth, final)),
    )


def _check_form(kind: Kind, schedules: Sequence[Schedule], root: int) -> None:
    size = len(schedules)
    roles = ROLES[kind]
    if roles.cut and schedules[0].chunks != size:
        raise ScheduleError(f"{kind.name} needs a chunk a rank, not {schedules[0].chunks}")
    for rank, one in enumerate(schedules):
        if one.two_buffers != (roles.source is roles.target is Parts.EACH):
            raise ScheduleError(f"rank {rank}: all_to_all has two buffers, and nothing else has")
        writes = any(
            not isinstance(step, Send) and step.stop > step.start for steps in one.rounds for step in steps
        )
        if writes != one.writes:
            raise ScheduleError(f"rank {rank}: the schedule is wrong about whether it writes")
        if writes and rank == root and roles.root_gives:
            raise ScheduleError(f"rank {rank} is the root, and writes what others read from it")


def _check_result(kind: Kind, run: _Run, rank: int, root: int) -> None:
    everyone = list(range(run.size))
    missing = [other for other in everyone if not run.heard[rank] >> other & 1]
    if kind is Kind.barrier and missing:
        raise ScheduleError(f"rank {rank} leaves the barrier before ranks {missing} came")
    for chunk, value in enumerate(run.held[rank]):
        expected = _expected(kind, run, rank, root, chunk)
        found = [] if value is None else sorted(run.expressions.leaves(value))
        if expected is not None and found != expected:
            what = "blocks" if run.two_buffers else "the values of ranks"
            raise ScheduleError(f"rank {rank}, chunk {chunk}: holds {what} {found}, not {expected}")


def _expected(kind: Kind, run: _Run, rank: int, root: int, chunk: int) -> list[int] | None:
    """The values that a chunk holds in the end; None where that does not matter."""
    roles, parts = ROLES[kind], origins(kind, rank, run.size, root)
    if run.two_buffers:
        return [run.inputs[chunk][rank]]
    if roles.one_tensor:
        return [root]  # on the root, too
    if not parts or (roles.source is Parts.EACH and chunk != rank):
        return None
    return list(parts[chunk if roles.target is Parts.EACH else 0])


def _check_one_answer(run: _Run) -> None:
    for chunk in range(run.chunks):
        answers = {run.held[rank][chunk] for rank in range(run.size)}
        if len(answers) != 1:
            raise ScheduleError(f"chunk {chunk}: ranks hold {len(answers)} different expressions")
        (answer,) = answers
        assert answer is not None
        once = run.reductions[chunk] == run.size - 1
        ordered = run.expressions.leaves(answer) == tuple(range(run.size))
        if not once and not ordered:
            raise ScheduleError(f"chunk {chunk} is reduced more than once, and not in the order of ranks")
        if not once and not all(schedule.repeats for schedule in run.schedules):
            raise ScheduleError(f"chunk {chunk} is reduced more than once, and the schedule does not say so")
