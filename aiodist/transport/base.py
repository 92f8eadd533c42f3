"""The definition of a channel: the seams between operations (above) and connections (below).

A *channel* is the directed message path from one process to another. Its sending end is an
`Outgoing`, its receiving end an `Incoming`; an `Endpoint` is one process's set of both. Messages
are matched by `Key`, never by order of arrival, so that any number of operations share a channel.

The rules that every implementation obeys (`testing.conformance_channel` checks them):

1. `send` and `recv` return True when the operation is over already: `done` is then never called.
   They return False when `done` will be called once, later; never from inside `send` or `recv`.
2. From the call until it is over the buffer is borrowed; the caller keeps it alive and unchanged.
3. After `cancel(context)` has returned, no buffer of that context is touched, no `done` of it is called.
4. No payload byte travels without a place, beyond the eager budget of a (channel, context), and that of
   EAGER_SHARES contexts a channel. A stalled context delays no other. What a peer makes this process
   remember is bounded, and what a program has in flight is not (REMEMBERED).
5. The end of a peer is reported once: `Observer.lost`, or `Observer.goodbye` if it closed on purpose.
6. Everything happens on the event loop's thread; callbacks may call any method again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from aiodist.errors import GroupBroken, Tampered
from aiodist.shm.segment import PeerSegment, Segment

FRAGMENT = 256 * 1024
"""Bytes of the largest piece in which a message travels, and of the largest piece a `Fold` is given."""

EAGER_MESSAGE = 8 * 1024
"""Bytes of the largest message that may travel before its receive is posted."""

EAGER_SHARES = 16
"""Contexts whose eager budgets one channel may have spent at once. Beyond that its messages wait for their
receives: a peer may name any number of contexts, also some that this process never makes."""

REMEMBERED = 4096
"""Offers, and READYs, that one end of a channel remembers of what the other says before it is asked for. What
comes beyond is forgotten, and said again when it is asked for; so a program may have any number of operations
in flight, and a peer's inventions cost no more memory than this."""

CONTROL_MESSAGE = 64 * 1024
"""Bytes of the largest message of a `ControlLink`."""

Done = Callable[[], None]
Route = Literal["tcp", "shm"]


class Key(NamedTuple):
    """The name of one message of a channel. At most one send and one receive may be in flight under a key.

    Args:
        context: 64 bits that name a group at an epoch.
        stream: 0 for collectives, 1 + tag for point-to-point messages (32 bits).
        seq: number of the operation in the group, or of the message in its stream (64 bits).
        part: which message of the operation: its round (32 bits).
    """

    context: int
    stream: int
    seq: int
    part: int


class Into:
    """A sink in memory.

    Args:
        view: writable, contiguous, format 'B', of exactly the message's size. Its contents are
            undefined until the receive is done.
    """

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view


class Fold:
    """A sink that is a function, which is given each fragment in order of offset as it arrives.

    Args:
        fold: called as `fold(fragment, offset)`. The fragment is read-only by contract, at most FRAGMENT
            bytes, a multiple of 16 bytes unless it is the last, and valid during the call alone (it may
            be a buffer that is used again, or a peer's mapped memory). It must not raise.
            A message of 0 bytes makes no call.
    """

    __slots__ = ("fold",)

    def __init__(self, fold: Callable[[memoryview, int], None]) -> None:
        self.fold = fold


Sink = Into | Fold


class Observer(Protocol):
    """The receiver of news from peers. One for all channels of an endpoint.

    Called from the loop, never from inside a method of a channel or endpoint that the observer's
    owner called; every method may call channels again (`arrived` may well post the receive, or cancel).
    """

    def arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        """Note a message from `rank`, or the offer of one. Called once a message, before it is matched and
        before any of its bytes reach a sink. Not called for what was offered without being remembered, until
        it is asked for (`crowded`).

        A message whose `nbytes` differs from the posted receive's is not delivered: the receive stays
        pending, so that an observer that compares signatures can say who disagreed.
        """

    def lost(self, rank: int, cause: str) -> None:
        """Note that a connection with `rank` failed, or ended without goodbye. At most once a rank."""

    def crowded(self, rank: int) -> None:
        """Note that `rank` offers more than is remembered: from now on, a message of it that is waited for
        without a posted receive must be asked for (`Incoming.ask`). At most once a rank."""

    def tampered(self, rank: int, error: Tampered) -> None:
        """Note that data of `rank` was altered on the path. That channel carries nothing any more, and `rank`
        was told so; nothing is known against it."""

    def unable(self, rank: int | None, error: GroupBroken) -> None:
        """Note that this process lacks what a connection with `rank` takes (None: with any), descriptors say:
        no fault of the rank's, and no messages pass. Instead of `lost`, but that may follow."""

    def goodbye(self, rank: int) -> None:
        """Note that `rank` closed its endpoint on purpose; all it sent has arrived. At most once a rank,
        instead of `lost`."""


class Outgoing(ABC):
    """The sending end of a channel."""

    rank: int
    """The peer's rank."""

    def poll(self) -> None:  # noqa: B027 - what moves by itself has nothing to do here
        """Move now what can be moved, as the loop would later; callbacks are called from in here. For a
        caller that could only wait."""

    @abstractmethod
    def send(self, key: Key, signature: bytes, data: memoryview, done: Done, sealed: bool = False) -> bool:
        """Start sending one message.

        Args:
            key: its name; used once in a context's life.
            signature: 32 bytes that the peer's observer is shown.
            data: contiguous bytes (format 'B'), possibly none; borrowed until the send is over. Over
                means that the buffer may be reused, not that the peer has the message.
            done: called once, later, if this returns False, unless the context is cancelled or the
                peer is lost first.
            sealed: the bytes will be interpreted (objects): without TLS they have to be
                authenticated, which those of tensors are not.

        Returns:
            True if the buffer is free again already.
        """

    @abstractmethod
    def cancel(self, context: int) -> None:
        """Forget all sends of a context, for good: sends made in it later are ignored (False, never done).

        The channel stays usable for other contexts. The peer is told nothing: its receives stay
        pending until it cancels them itself.
        """

    @abstractmethod
    def close(self) -> None:
        """Close gracefully: what was begun is sent, then goodbye. Further sends are ignored."""

    @abstractmethod
    def kill(self) -> None:
        """Close at once, without goodbye; no `done` is called any more."""


class Incoming(ABC):
    """The receiving end of a channel. It exists before the peer connects."""

    rank: int
    """The peer's rank."""

    def poll(self) -> None:  # noqa: B027 - what moves by itself has nothing to do here
        """See `Outgoing.poll`."""

    @abstractmethod
    def recv(self, key: Key, nbytes: int, sink: Sink, done: Done) -> bool:
        """Post the receive of one message.

        Args:
            key: its name.
            nbytes: its size; a message of another size is not delivered (see `Observer.arrived`).
            sink: where the bytes go; borrowed until the receive is over.
            done: called once, later, if this returns False, unless the context is cancelled or the
                peer is lost first.

        Returns:
            True if the message was here already and is in the sink.

        Raises:
            UsageError: a receive is posted under this key.
        """

    @abstractmethod
    def ask(self, key: Key) -> None:
        """Ask for a message of any size, for which no receive can be posted before it arrives. Only needed
        once the observer was told that the peer's offers are `crowded`; may be repeated."""

    @abstractmethod
    def cancel(self, context: int) -> None:
        """Forget all posted receives of a context, for good; what still arrives for them is dropped.

        Sinks are untouched after this returns, `done` is not called. Receives posted in it later are ignored
        (False, never done).
        """

    @abstractmethod
    def retire(self, context: int) -> None:
        """Cancel a context that is dead for good: all that was stored for it is freed, all that still
        comes is dropped unreported, and receives posted in it are ignored (False, never done)."""

    @abstractmethod
    def pending(self, context: int, stream: int) -> list[tuple[int, int, bytes]]:
        """The messages that arrived or were offered in a stream, are remembered, and match no posted receive,
        as (seq, nbytes, signature), in order of seq (messages of `part` 0 only)."""


class ControlLink(ABC):
    """A small two-way connection for messages that carry no bulk. Ordered and reliable.

    Attributes:
        rank: the peer's rank.
        on_message: called with each message (bytes). Nothing at all is delivered before it is set.
        on_closed: called once as (goodbye, cause) when the peer closes (goodbye True) or is gone (False).
            Not called after this side's own `close` or `kill`. Set it before `on_message`.
        on_tampered: called instead, once, where what one of the two sent was altered on the path. The
            link is gone; nothing is known against the peer, which may be dialed again. Both ends are told,
            unless the attacker prevents that. Set it before `on_message`.
        far: whether a network lies between: then the peer's host may fall silent, which ends the link as soon
            as something that was sent is not acknowledged in time.
    """

    rank: int
    far: bool
    on_message: Callable[[bytes], None]
    on_closed: Callable[[bool, str], None]
    on_tampered: Callable[[Tampered], None]

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send 1 to CONTROL_MESSAGE bytes. Ignored when the link is closed.

        A peer that reads nothing while a bounded queue fills up counts as lost.
        """

    @abstractmethod
    def post(self, message: bytes) -> None:
        """Send from any thread, also while the loop does not turn. The message is dropped where earlier ones
        wait for the peer to read. The link's closing waits for it, microseconds."""

    @abstractmethod
    def drain(self) -> None:
        """Deliver now, from inside this call, all that has reached this process already, the peer's end
        included. Needed before the peer is judged: what it wrote before its process ended is here."""

    @abstractmethod
    def close(self) -> None:
        """Close gracefully: what was sent is flushed, then goodbye. Nothing is delivered any more."""

    @abstractmethod
    def kill(self) -> None:
        """Close at once, without goodbye."""


class Endpoint(ABC):
    """One process's end of all its channels and control links.

    Attributes:
        rank: this process's global rank.
        card: what peers must know to dial (msgpack-able, secret-free). Complete once the endpoint exists.
        observer: told what comes from peers; set it before the first channel is asked for.
        on_control: called as (rank, link) for each control link that a peer dialed.
        exposed: whether any process that reaches it over the network may pose as a rank, for want of a secret
            and TLS.
    """

    exposed: bool = False
    rank: int
    card: dict[str, Any]
    observer: Observer
    on_control: Callable[[int, ControlLink], None]

    def statistics(self) -> dict[str, int]:
        """Counts of its links now, by name; none where it keeps none."""
        return {}

    @abstractmethod
    def introduce(self, cards: Mapping[int, Mapping[str, Any]]) -> None:
        """Learn the cards of peers. Needed before dialing them, and before they are let in."""

    @property
    @abstractmethod
    def segment(self) -> Segment | None:
        """The memory that this process shares with its local peers; None before `prove_local` has asked one,
        and where there is no shared memory. It stays until the endpoint closes."""

    @property
    @abstractmethod
    def peer_segments(self) -> Mapping[int, PeerSegment]:
        """The segments of the local peers, by global rank, without this process's own. One of a peer that is
        lost or has said goodbye stays until the endpoint closes: what it published can still be read."""

    @abstractmethod
    async def prove_local(
        self, ranks: Iterable[int], linked: Iterable[int] = (), patience: float = 5.0
    ) -> set[int]:
        """The ranks of `ranks` that share memory with this process, found by doing it; they are in
        `peer_segments` then. Bounded: a rank that does not answer within seconds is not local.

        Args:
            ranks: the candidates.
            linked: those of them that this process will want a control link to. Where it can, one comes
                with the proof, so that `link_control` need not dial after `keep_peer_segments`.
            patience: seconds to wait for answers, at most.

        Raises:
            BackendUnavailable: this process must share memory, and cannot.
        """

    @abstractmethod
    def keep_peer_segments(self, ranks: Collection[int]) -> None:
        """Keep the local peers that were agreed on: release those that are not among `ranks`, and prove
        nothing any more. Control links that came with a proof are reported soon."""

    @abstractmethod
    def route(self, rank: int, route: Route) -> None:
        """Fix what the outgoing channel to `rank` runs over. `UsageError` once it was used over the other."""

    @abstractmethod
    def outgoing(self, rank: int) -> Outgoing:
        """The channel to `rank`; returns at once, dials when first used. Failure goes to `Observer.lost`."""

    @abstractmethod
    def incoming(self, rank: int) -> Incoming:
        """The channel from `rank`; receives can be posted before it connects."""

    @abstractmethod
    def link_control(self, rank: int) -> Awaitable[ControlLink]:
        """Dial a control link to `rank`. Raises `PeerLost` if that cannot be done, and another `GroupBroken`
        where that is this process's own fault."""

    @abstractmethod
    def peer_pid(self, rank: int) -> int | None:
        """The process id of a peer on this host, as the kernel vouches for it; None where unknown."""

    @abstractmethod
    def drop(self, rank: int) -> None:
        """End what connects this process with a rank that was given up; take no channel from it any more.
        Posted receives are forgotten, their sinks are not touched any more. Its end is not reported."""

    @abstractmethod
    def cancel(self, context: int) -> None:
        """Call `cancel` on every channel that exists, both ways."""

    @abstractmethod
    def retire(self, context: int) -> None:
        """Call `Outgoing.cancel` and `Incoming.retire` on every channel, also on later ones."""

    @abstractmethod
    async def aclose(self, linger: float | None = None) -> None:
        """Close gracefully: what was begun is sent, every peer is told goodbye; the wait is bounded.
        Returns with no task, socket or mapping open.

        Args:
            linger: seconds to wait for peers; None: as long as is usual.
        """

    @abstractmethod
    def kill(self) -> None:
        """Close at once without goodbye, as if the process had died. Needs no running loop."""
