"""The interface of an engine: a library that moves data for one group, and checks nothing.

aiodist does the rest (law 13): it numbers the operations, compares what the members issued, matches messages,
keeps time, notices deaths, and ends the group. An engine implements `exchange`, and natively what its library
does better; everything else is composed of exchanges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from aiodist.backends.base import Array, Operation
from aiodist.backends.foreign.moves import Move, moves_of
from aiodist.backends.foreign.task import Task, prepare
from aiodist.base.types import Kind

Done = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """The facts about its group that an engine is given.

    Attributes:
        rank: this process's group rank.
        ranks: global ranks of the members, in group order.
        context: 64-bit number that names the group, equal on all members.
        loop: the group's event loop.
        device: index of the CUDA device of this process; None where it has none.
        gather: collective: leave some bytes, get those of all members, by group rank. They travel over
            aiodist's own connections. For `open` only.
        failed: the library failed: breaks the group. On the loop.
        parent: the engine of the group that this one was made from, if all *its* members take part in making
            this one (those left out by `wait_outside`); else None.
    """

    rank: int
    ranks: tuple[int, ...]
    context: int
    loop: asyncio.AbstractEventLoop
    device: int | None
    gather: Callable[[bytes], Awaitable[list[bytes]]]
    failed: Callable[[Exception], None]
    parent: Engine | None = None

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)


class Engine:
    """The base class of engines. One is made for each group.

    `done` of every method is to be called once, on the loop, when the data is where it belongs and the
    library touches the arrays no more; from threads by `setup.loop.call_soon_threadsafe(done)`. It is kept
    from the user if the group has broken meanwhile. What cannot be done is told by `setup.failed`. No method
    may hold the loop.

    Attributes:
        name: what `get_backend` says.
        places: where its tensors may lie: 'cpu', 'cuda'.
        capabilities: of `base.CAPABILITIES`, those that the library itself has: 'one-answer', 'regroups'.
            Signatures, tags and receiving from anybody are aiodist's.
        beside: start an operation while it is still being compared whether all members issued the same; its
            Work ends only after. For libraries that can be stopped at any time. False: compare first.
        ready: a receiver tells the sender when it begins to receive: for libraries whose messages have no
            tags, and must begin in the same order on both sides.
        stages: it fills and empties tasks by itself. Tensors that are not on the host need that.
        fuses: it begins a batch as one operation, so that all members have to batch alike: compared with the
            rest.
        averages: it knows AVG.
        uneven: collectives of its own whose parts may differ in size. Others are composed where they do.
        greets: bytes that a sender's engine has for that of the receiver, with every message; see `greeting`.
    """

    name: ClassVar[str]
    places: ClassVar[frozenset[str]] = frozenset({"cpu"})
    capabilities: ClassVar[frozenset[str]] = frozenset()
    beside: ClassVar[bool] = False
    ready: ClassVar[bool] = False
    stages: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    uneven: ClassVar[frozenset[Kind]] = frozenset()
    greets: ClassVar[int] = 0

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    # ── before there is a group ──────────────────────────────────────────────────────────────────────

    @classmethod
    def check(cls) -> None:
        """Load the library. Called in a thread, before the process meets the others; perhaps again later.

        Raises:
            BackendUnavailable: it is not here; the hint names the one thing to install.
        """

    @classmethod
    def tell(cls, device: int | None) -> bytes:
        """The facts about this process that `fits` needs.

        Args:
            device: index of its CUDA device, if it has one.
        """
        return b""

    @classmethod
    def fits(cls, told: Sequence[bytes]) -> str:
        """The reason why these processes cannot use it together; '' if they can. The same answer on all.

        Args:
            told: what each rank's `tell` gave.
        """
        return ""

    # ── what every engine has ────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Connect with the other members, who all do the same now. The group is not used before.

        Raises:
            GroupBroken: not here. The other members, who may wait, are told.
        """

    def issued(self, operation: Operation) -> None:
        """Note what holds only now, inside the call in which a user issues an operation.

        It is handed over at once, or when the `coalesce` block is left."""

    def exchange(self, moves: Sequence[Move], done: Done) -> None:
        """Send and receive all of these at once. Between two members they match in their order.

        Exchanges begin in the same order on all members. A peer may be this rank itself.
        """
        raise NotImplementedError

    def send(self, task: Task, peer: int, number: int, done: Done) -> None:
        """Send `task.source` to a member that receives it.

        Args:
            number: counts the messages from this rank to that one; the receiver has the same. Those of one
                pair may begin in different orders on both sides, unless `ready`.
        """
        raise NotImplementedError

    def recv(self, task: Task, peer: int, number: int, done: Done) -> None:
        """Receive into `task.target` what a member sends under a number."""
        raise NotImplementedError

    def to_oneself(self, sent: Task, received: Task, done: Done) -> None:
        """Copy a message of this rank to itself, `sent.source` to `received.target`. Asked of engines that
        stage by themselves (`stages`); arrays of others are on the host, and are copied there."""
        raise NotImplementedError

    def greeting(self, peer: int) -> bytes:
        """Bytes that the receiver's engine needs before it receives from this one: `greets` of them."""
        return b""

    def greeted(self, peer: int, greeting: bytes) -> None:
        """Take the bytes of a sender's engine. Before `recv`; perhaps again with every message."""

    def splitting(self, context: int, members: Sequence[int]) -> None:
        """Begin what the library does with all members when they make another group of this one, in this
        place among its operations. The new one's engine opens later, or never, with this one as
        `Setup.parent`.

        Args:
            context: of the new group.
            members: of it, as ranks of this group, in its order.
        """

    def abort(self, released: Done) -> None:
        """Stop everything; `released()` once, now or later on the loop, when no user's array is touched any
        more. Called at most once; afterwards only `close`."""
        released()

    def close(self) -> None:
        """Let go of the group; nothing is under way. Not collective, and quick."""

    async def wait_outside(self) -> None:
        """Take the part of a non-member while members make another group from this one (`Setup.parent`)."""

    # ── what it may do better ────────────────────────────────────────────────────────────────────────

    def allocate(self, count: int, dtype: np.dtype[Any]) -> Array:
        """An uninitialised contiguous array where the tensors lie, to stage one in."""
        return np.empty(count, dtype)

    def prepare(self, operation: Operation) -> Task:
        """The task of an operation: contiguous arrays."""
        setup = self.setup
        return prepare(operation, setup.rank, setup.size, self.allocate, self.averages)

    def compose(self, task: Task, done: Done) -> None:
        """Carry out a collective as one exchange; what is reduced, the host reduces (`moves_of`)."""
        self.exchange(moves_of(task, self.setup.rank, self.setup.size), done)

    def coalesce(self, tasks: Sequence[tuple[Task, Done]]) -> None:
        """Start what was issued in one batch."""
        for task, done in tasks:
            self.start(task, done)

    def start(self, task: Task, done: Done) -> None:
        """Start a collective: by the method of its name where the engine has one, such as
        `def all_reduce(self, task: Task, done: Done) -> None`. The arrays are `task.source` and
        `task.target`; where parts may differ in size (`uneven`), `task.send` and `task.recv`."""
        composed = task.uneven and task.kind not in self.uneven
        method = self.compose if composed else getattr(self, task.kind.name, self.compose)
        method(task, done)
