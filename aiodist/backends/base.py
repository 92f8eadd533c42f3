"""The interfaces of what carries out operations: the host engine, and carriers beside it.

Operations are validated and numbered: the group has checked the call, taken its number and made the Work. An
engine or carrier starts one inside `submit` and says on the loop that it ended well. It never fails one: it
reports what broke, and the group, which knows all that is in flight, aborts it and fails the Works.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aiodist.backends.work import GroupState, Work
from aiodist.base.errors import GroupBroken
from aiodist.base.operations import OBJECT_TAGS
from aiodist.base.timeouts import Timeout
from aiodist.base.types import AS, NO_ROOT, Call, Kind, Premultiplied, ReduceOp

Array = npt.NDArray[Any]
Given = Array | list[Array] | None
"""An argument of an operation: a tensor, a list with one for each member, or nothing."""
Sent = tuple[tuple[int, ...], ...]
"""The number of messages that a rank has sent to each member, as (member, number, member, number, …), for
each internal group that carries some. Members are group ranks; those to whom it sent none are left out."""


def _nothing(_what: int) -> None:
    """Write nothing down: the operation is a part of another one, or not in flight."""


@dataclass(slots=True, eq=False, repr=False)
class Operation:
    """One started operation: what to do, on which memory, and how to say that it has ended.

    Args:
        call: what all ranks agree on.
        work: the user's handle.
        source: what is read: an array of any strides, which shares memory with the user's tensor; a list of
            one for each member; or None.
        target: what is written, likewise. May be `source` itself (in place).
        result: what the Work gives when the operation has ended well.
        ended: called once, after the Work was completed.
        peer: group rank of the other side, point-to-point only; -1 receives from any.
        tag: of a point-to-point message.
        senders: what the Work of a receive gives, by the sender's group rank.
        factor: what this rank's tensor is multiplied by first (PREMUL_SUM).
        source_sizes: elements of the part for each member in the source, where it is cut in parts that may
            differ; None: equal parts. Known also where there is no source, unless each pair has its own.
        target_sizes: elements of the part from each member in the target, likewise.
        place: where the user's tensors lie, 'cpu' or 'cuda'; '' where there are none.
        convert: makes what the Work gives of the result; what it raises fails the Work, and nothing else.

    Attributes:
        noted: what the carrier noted of it in the user's own call (`Carrier.hold`); None: nothing yet.
        happened: writes down when all peers had arrived, or data came first (`recorder.layout`: ARRIVED,
            FIRST), for an operation in flight. From any thread.
    """

    call: Call
    work: Work[Any]
    source: Given
    target: Given
    result: Any
    ended: Callable[[Operation], None]
    peer: int = -1
    tag: int = 0
    senders: Sequence[int] = ()
    factor: float | None = None
    source_sizes: Sequence[int] | None = None
    target_sizes: Sequence[int] | None = None
    place: str = ""
    convert: Callable[[Any], Any] | None = None
    noted: Any = field(default=None, init=False)
    happened: Callable[[int], object] = field(default=_nothing, init=False)

    @property
    def whole(self) -> Operation | None:
        """The user's operation, of which this is all that has been begun; None where other parts may be under
        way, so that it cannot be taken back."""
        return self

    @property
    def sealed(self) -> bool:
        """Whether its bytes are no tensor's, and are acted on: so they have to be authenticated."""
        return self.tag >= OBJECT_TAGS or AS in self.call.detail

    def fail(self, error: BaseException) -> None:
        """End a message alone: a receive for which nothing has come, and which its backend has taken back
        already, or a send that its receiver takes no more. (What fails otherwise fails with its group.)"""
        self.ended(self)
        self.work._fail(error)

    def succeed(self) -> None:
        """End the operation well. The buffers are the user's again."""
        self.ended(self)
        complete(self.work, self.result, self.convert)


class Decoding(ABC):
    """The `convert` of a receive of any number of bytes: it makes the result of (sender, bytes).

    Attributes:
        how: decodings that have the same one give the same object of the same bytes.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def how(self) -> object: ...

    @abstractmethod
    def is_slow(self, data: Array) -> bool:
        """Whether `decode` would hold the loop too long, and may be called in a thread."""

    @abstractmethod
    def decode(self, data: Any) -> Any:
        """The object that the bytes stand for."""

    @abstractmethod
    def result(self, sender: int, obj: Any) -> Any:
        """Make the Work's result of the sender's group rank and the object."""

    def __call__(self, received: tuple[int, Any]) -> Any:
        sender, data = received
        return self.result(sender, self.decode(data))


def complete(work: Work[Any], result: Any, convert: Callable[[Any], Any] | None) -> None:
    """End a Work well, with a result or what `convert` makes of it; what that raises fails the Work."""
    if convert is not None:
        try:
            result = convert(result)
        except Exception as error:
            work._fail(error)
            return
    work._finish(result)


class Reports(Protocol):
    """The reports of a backend to its group. Ranks are group ranks."""

    def mismatch(self, seq: int, peer: int, theirs: bytes) -> None:
        """Report that a peer's signature for collective `seq` differs from this rank's."""

    def peer_mismatch(self, said: dict[int, str]) -> None:
        """Report that the two sides of a message disagree about its size or dtype."""

    def broken(self, error: GroupBroken) -> None:
        """Report that the group can do no more work. The other members are told."""


class Numbers(Protocol):
    """The numbers of one group's operations.

    Attributes:
        issued: the next collective's number.
        counts: of the messages so far: by whether they are received, the peer, the tag, and '' for those of
            the host engine.
    """

    issued: int
    counts: dict[Any, int]

    def next_message(self, kind: Kind, peer: int, tag: int) -> int:
        """Take the next number of sends to, or receives from, a peer with a tag."""


class Starter(Protocol):
    """A backend's way around `submit` for what is issued again and again.

    A call takes a number and starts, if it is a case for this; else it gives None, and nothing has happened.
    What it starts is entered in flight before the loop sleeps, or has turned twice.
    """

    def start(
        self,
        kind: int,
        lead: Any,
        other: Any,
        held: bool,
        op: ReduceOp | Premultiplied | int = 0,
        root: Any = NO_ROOT,
        timeout: Timeout = None,
        depth: int = 1,
        convert: Callable[[Any], Any] | None = None,
    ) -> Work[Any] | None:
        """A collective.

        Args:
            kind: it; `OBJECT_KINDS` more: the frames of one of objects.
            lead: the tensor whose dtype and shape are agreed on, unchecked: the source, but for scatter.
            other: the other tensor or None, unchecked.
            op, root: what the caller passed, unchecked.
            held: the caller passed `async_op=True`.
            timeout: what the caller passed, unchecked: one that is none is refused here.
            depth: of the program's line: it has called the method (1) that calls this, or others between.
            convert: makes what the Work gives of a contiguous array that was got. What it raises breaks the
                group.
        """

    def note_all(self) -> None:
        """Enter what is pending in flight now."""

    def call(self, seq: int) -> Call | None:
        """The call that was started here under a number, unless that is long ago."""


class Messenger(Protocol):
    """A backend's way around `submit` for small messages; like `Starter`."""

    def send(self, tensor: Any, dst: Any, tag: Any, held: bool) -> Work[None] | None:
        """A send, which is done then. Nothing was checked of what the caller passed."""

    def recv(self, tensor: Any, src: Any, tag: Any, held: bool) -> Work[int] | None:
        """A receive, likewise."""

    def send_bytes(self, data: bytes, dst: int, tag: int, held: bool, depth: int = 1) -> Work[None] | None:
        """A send of bytes, to a peer and with a tag that are checked; `depth` as of `Starter.start`."""

    def recv_bytes(
        self, src: int, tag: int, held: bool, convert: Callable[[Any], Any], depth: int = 1
    ) -> Work[Any] | None:
        """A receive of any number of bytes; `convert` makes the result of (sender, bytes)."""

    def note_all(self) -> None:
        """Enter what is pending in flight now."""


class Executor(ABC):
    """One executor of a group's operations: its host engine, or a carrier.

    An implementation overrides the calls for which it has something to do.
    """

    @abstractmethod
    def submit(self, operation: Operation) -> None:
        """Start an operation. It has begun when this returns."""

    @abstractmethod
    def hold(self, operation: Operation) -> None:
        """Note an operation that was issued and is submitted later (`coalesce`); others may come before.

        Called inside the user's call: what holds at that moment only, such as the stream on which the caller
        works, is noted now. A collective has its number.
        """

    def close_receives(self, error: Callable[[], BaseException]) -> None:
        """End the receives for which nothing has come: the group closes.

        Args:
            error: makes what they fail with.
        """

    def sent(self) -> Sent:
        """The number of messages that this rank has sent to each member."""
        return ()

    def rank_left(self, rank: int, sent: Sent | None) -> None:
        """Note that a member has closed this group. Sends to it end; receives from it do once all that it
        sent has come.

        Args:
            rank: its global rank.
            sent: what it had sent; None: that is not known, and nothing more comes soon.

        Raises:
            ValueError: no member can have sent that.
        """

    def will_not_join(self, context: int, ranks: Sequence[int]) -> None:
        """Note that this rank never makes a group that other members may have made with it as a member.

        Args:
            context: of that group.
            ranks: global ranks of its members; () where they are not known.
        """

    def retire(self) -> None:
        """Forget the group, which is gone for good, and drop what may still arrive for it."""


class HostEngine(Executor):
    """The engine that every group has: for tensors in the host's memory, and for operations without tensors.

    It knows every collective of the group, also those of carriers, and every message but theirs.
    """

    @abstractmethod
    def subgroup(self, context: int, ranks: Sequence[int], reports: Reports) -> HostEngine:
        """The host engine of a new group; see `Carriers.subgroup`."""

    @abstractmethod
    def off_loop(self, cost_ns: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        """Do a job on buffers of the group, by a thread where it would hold the loop too long (law 7). A job
        that raises breaks the group; `done` is called then, too.

        Returns:
            True: it is done already, and `done` is not called.
        """

    @abstractmethod
    def abort(self, released: Callable[[], None]) -> None:
        """Stop everything. `released()` is called once, now or later on the loop, when no buffer is touched
        any more; then the group fails the Works. Nothing is submitted afterwards."""

    def halt(self) -> None:
        """Take part in no collective any more: the group will break."""

    def reserve(self, seq: int, operation: Operation | None = None) -> None:
        """Note that collective `seq` has its number and is submitted later; others may come before it.

        Args:
            operation: it, where it is known by now.
        """

    def skip(self, seq: int) -> None:
        """Note that no collective `seq` comes here, on any rank: a carrier carries it out, or it was reserved
        and is not needed."""

    def hold(self, operation: Operation) -> None:
        """Note an operation that was issued and is submitted later: a collective's number is reserved."""
        if not operation.call.message:
            self.reserve(operation.call.seq, operation)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array, uninitialised, where this engine reads and writes it with the fewest copies."""
        return np.empty(shape, dtype)

    def starter(
        self, issuer: GroupState, numbers: Numbers, note: Callable[[Work[Any]], Operation]
    ) -> Starter | None:
        """A way around `submit`, or None.

        Args:
            issuer: what the group's Works have in common.
            numbers: which it takes.
            note: makes the operation of a Work and enters it in flight.
        """
        return None

    def messenger(
        self,
        issuer: GroupState,
        numbers: Numbers,
        enter: Callable[[Operation], None],
        ended: Callable[[Operation], None],
    ) -> Messenger | None:
        """A way around `submit` for messages, or None.

        Args:
            issuer, numbers: as of `starter`.
            enter: enters a receive in flight.
            ended: called when one has ended, in flight or not.
        """
        return None

    def statistics(self) -> dict[str, dict[str, int]]:
        """Counts, as of now, of each part of it that keeps some: see `ProcessGroup.statistics`."""
        return {}

    def seen(self, seq: int) -> set[int]:
        """Other members, by group rank, that are seen here to have begun collective `seq`, whether or not
        their loops turn. For what an error says: it may leave out some that have."""
        return set()

    def take_in(self) -> bool:
        """End what peers have done their part of already. Called before a loss, or another rank's abort, is
        told: what that rank did before counts, and others may have a result of it. And at the end.

        Returns:
            a peer disagrees about what has ended here, which is reported.
        """
        return False

    def heard_nobody(self) -> bool:
        """Whether the last collective here has ended without a word of another member, as a root's does. If a
        member has issued another one, its messages may still be on their way."""
        return False

    def unasked(self) -> int:
        """The number of the user's sends that wait for nothing but their receives."""
        return 0


class Carrier(Executor):
    """The executor of a group's operations on tensors in some places, which stands on its host engine.

    Attributes:
        places: where its tensors lie: 'cpu', 'cuda'; and what the call's signature says of it, '' where any
            place goes with it.
        capabilities: what the conformance checks may ask of it; of `CAPABILITIES`.
    """

    places: Mapping[str, str]
    capabilities: frozenset[str]

    @abstractmethod
    def abort(self) -> None:
        """Stop everything; the group's release is held until nothing here touches a buffer any more."""

    @abstractmethod
    def child(self, host: Any, whole: bool) -> Carrier:
        """The carrier of a group made of this one's members.

        Args:
            host: the host engine of that group.
            whole: all members of this one take part in making it.
        """

    async def open(self) -> None:
        """Become ready, with all members: the group is not used before."""

    async def wait_outside(self) -> None:
        """Take the part of a non-member while members of the group make another one."""

    def batch(self, begins: bool) -> None:
        """Begin or end a batch: what is submitted in it may begin together, at its end."""

    def splitting(self, context: int, members: Sequence[int]) -> None:
        """Note that all members make another group of this one, in this place among its operations.

        Args:
            context: of the new group.
            members: of it, as ranks of this group, in its order.
        """


CAPABILITIES = frozenset(
    {
        "signatures",  # law 4 in band: a mismatch is found without the control plane
        "one-answer",  # law 3: bitwise equal all_reduce on all ranks
        "any-source",  # recv(src=None)
        "tags",  # point-to-point tags
        "regroups",  # the group can be followed by another epoch in the same process
    }
)


def arrays_in(given: Any) -> list[Any]:
    """The arrays of an argument: those of a list, one, or none."""
    return given if type(given) is list else [] if given is None else [given]


def flat(array: Array) -> Array:
    """A contiguous array as one axis, sharing its memory."""
    return array.reshape(-1)


def contents(array: Array) -> memoryview:
    """The memory of a contiguous array of any shape, with one element at least."""
    try:
        return memoryview(array).cast("B")  # type: ignore[arg-type]  # a third of the time
    except (TypeError, ValueError):  # complex numbers, bfloat16
        return as_bytes(flat(array))


def as_bytes(array: Array) -> memoryview:
    """The memory of a contiguous one-axis array."""
    return array.view(np.uint8).data
