"""One running operation of a hierarchy, and what its steps are made of.

Large tensors go in pieces, so that one piece crosses the network while the host's ranks work on others. Each
piece is a *strand*: a generator that yields where it waits for what it has started. What has no use but as
a step lies in this process's segment, where the host's ranks read it without a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiodist.backends.arrays.kernels import copy_cost_ns, copy_into
from aiodist.backends.base import Array, Given, Operation
from aiodist.backends.host.grid import Grid
from aiodist.backends.host.level import InternalGroup, carried
from aiodist.backends.inner import InnerOperation
from aiodist.base.types import NO_ROOT, Call, Kind, ReduceOp
from aiodist.observe.recorder.layout import ARRIVED

Steps = Generator[None, None, None]

CROSSING = 2
"""Pieces of it that are between hosts at a time: messages of a channel take turns, so many would end late."""


@dataclass(slots=True, eq=False)
class StageRun:
    """One running operation.

    Args:
        grid: the group as a table.
        operation: the user's.
        inner, outer: numbers in the inner group, and in the outer one.
        ended: called when it has ended well.

    Attributes:
        halted: make no further progress.
        after: (to, from) copies, when all strands are over.
        offer, detail: of internal calls: the user's number and call.
    """

    grid: Grid
    operation: Operation
    inner: list[int]
    outer: list[int]
    ended: Callable[[], None]
    halted: bool = False
    after: list[tuple[Array, Array]] = field(default_factory=list)
    offer: int = field(init=False)
    detail: str = field(init=False)
    _open: int = 0
    _crossing: int = 0
    _queue: deque[Strand] = field(default_factory=deque)
    _missed: set[InternalGroup] = field(init=False)

    def __post_init__(self) -> None:
        self.offer, self.detail = carried(self.operation.call)
        levels = ((self.grid.inner, self.inner), (self.grid.outer, self.outer))
        self._missed = {level for level, numbers in levels if numbers}

    def start(self, steps: Callable[[Strand], Steps]) -> None:
        """Begin a strand."""
        self._open += 1
        Strand(self, steps).go_on()

    def may_cross(self, strand: Strand) -> bool:
        """Whether a strand may go on between hosts now; else it hears `over` when it may. Strands come here
        in the order of their pieces, on all ranks alike."""
        if self._crossing < CROSSING:
            self._crossing += 1
            return True
        self._queue.append(strand)
        return False

    def crossed(self) -> None:
        """Note that a strand has left the network."""
        if self._queue:
            self._queue.popleft().over()
        else:
            self._crossing -= 1

    def happened(self, level: InternalGroup, what: int) -> None:
        """Note that something has happened to a part. All have come when this rank's row and its column have:
        who comes to one of them second has met all of the other."""
        if what == ARRIVED:
            self._missed.discard(level)
            if self._missed:
                return
        self.operation.happened(what)

    def strand_over(self) -> None:
        """Note that a strand has ended well; with the last one, the operation has."""
        self._open -= 1
        if self._open:
            return
        if self.after:
            after, self.after = self.after, []
            self.start(partial(_copying, copies=after))
        else:
            self.ended()


class Strand:
    """One strand of a run; see the module.

    Args:
        run: the operation that it is a part of.
        steps: makes the generator.
    """

    __slots__ = ("_pending", "_stepping", "_steps", "run")

    def __init__(self, run: StageRun, steps: Callable[[Strand], Steps]) -> None:
        self.run = run
        self._pending = 0
        self._stepping = False
        self._steps = steps(self)

    def go_on(self) -> None:
        """Run the strand until it has to wait."""
        if self._stepping:
            return  # what was just started is over already
        self._stepping = True
        try:
            while not self._pending and not self.run.halted:
                next(self._steps)
        except StopIteration:
            self.run.strand_over()
        except Exception as error:
            self.run.grid.channels.failed(error)
        finally:
            self._stepping = False

    def over(self) -> None:
        """Go on: something that was started has ended well."""
        self._pending -= 1
        self.go_on()

    # ── what it starts ───────────────────────────────────────────────────────────────────────────────

    def cross(self, *args: Any, **named: Any) -> Steps:
        """Call `submit` for the outer group, when it is this strand's turn, and wait for the end."""
        if not self.run.may_cross(self):
            self._pending += 1
            yield
        self.submit(self.run.grid.outer, *args, **named)
        yield
        self.run.crossed()

    def submit(
        self,
        level: InternalGroup,
        number: int,
        kind: Kind,
        shape: tuple[int, ...],
        source: Given,
        target: Given,
        *,
        reduce: ReduceOp | None = None,
        root: int = NO_ROOT,
        factor: float | None = None,
    ) -> None:
        """Start an internal operation. `shape` is what the internal group's ranks agree on."""
        user = self.run.operation.call
        call = Call(kind, number, user.dtype, shape, reduce, root, self.run.offer, self.run.detail)
        self._pending += 1
        work = self.run.operation.work
        operation = InnerOperation(call, work, source, target, then=self.over, factor=factor)
        operation.happened = partial(self.run.happened, level)
        level.backend.submit(operation)

    def copy(self, copies: Sequence[tuple[Array, Array]]) -> None:
        """Copy arrays, (to, from)."""

        def copy() -> None:
            for to, source in copies:
                copy_into(to, source)

        self.job(sum(copy_cost_ns(to.nbytes) for to, _ in copies), copy)

    def job(self, cost: float, job: Callable[[], None]) -> None:
        """Do something to our buffers, in the thread if it takes long."""
        self._pending += 1
        if self.run.grid.channels.off_loop(cost, job, self.over):
            self.over()


def _copying(strand: Strand, copies: Sequence[tuple[Array, Array]]) -> Steps:
    strand.copy(copies)
    yield
