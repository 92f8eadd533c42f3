"""The frames of a link between local processes by two rings in shared memory, instead of its socket.

A frame in a ring needs no call to the system, where its reader polls; where the reader sleeps it is woken.
All frames go by the rings once both ends have agreed on them, in the order in which they are posted. The
socket stays for the agreement, for the goodbye, and to tell of a peer's death.

    dialed end                                      other end
      RING where its area is        ──socket──▶
                                    ◀──socket──     RING where its area is, and whether it can read the
                                                    other's memory; its frames go by its ring now
      RING ON; its frames now, too  ──socket──▶
      ...
      RING OFF; back to the socket  ──socket──▶     it does the same, if it has not yet

Order is kept over these changes by two rules. Who reads a RING frame has read all that came over the socket
before it, and looks into the ring from then on. And who reads of the socket takes what is in the ring first:
before a buffer of frames, and before an OFF.

A frame for which the ring has no room waits here, and those behind it, until the peer has taken some.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Protocol, cast

from aiodist import _engine
from aiodist._engine.errors import RingError
from aiodist.base.errors import WireError
from aiodist.net.wire.frame import HEADER, Frame, Type, pack, parse, payload_bytes
from aiodist.transport.lending import Borrower, Lender
from aiodist.transport.link import BURST, Waiting, Waking
from aiodist.transport.shm.arena import PAGE
from aiodist.transport.shm.heap import ALIGN
from aiodist.transport.shm.remote import Remote, address_of, pays
from aiodist.transport.shm.ring import RING, address_in, area_bytes, clear, words_of
from aiodist.transport.shm.segment import PeerSegment, Segment

ANSWERS = 16 * 1024
"""Bytes of the ring of an end that sends no messages, only answers."""

_LARGEST = 1 << 20
_EAGER, _RING, _GOODBYE = int(Type.EAGER), int(Type.RING), int(Type.GOODBYE)
_EMPTY = memoryview(b"")


class Switch(enum.IntEnum):
    """The meaning of `total` in a RING frame whose `word` is no offset."""

    OFF = 0  # what follows comes over the socket; the receiver of this does the same
    ON = 1  # what follows comes by the ring


class RingOwner(Waiting, Protocol):
    """The link."""

    producer: _engine.Producer | None
    consumer: _engine.Consumer | None

    def say(self, header: bytes) -> None:
        """Send a frame over the socket."""

    def deliver(self, consumer: _engine.Consumer, most: int) -> int:
        """Give receives that wait for them the small messages at the beginning of the ring, up to so many
        bytes → how many were moved."""

    def take_eager(self, record: memoryview) -> int:
        """Act on an EAGER frame and its payload, which a record begins with → the payload's bytes."""

    def take_frame(self, frame: Frame, payload: memoryview) -> None:
        """Act on another frame that came. The payload is valid during the call only."""

    def listens(self) -> bool:
        """Whether there is somebody for whom frames are taken."""

    def flowed(self) -> None:
        """Write on: nothing waits here any more."""

    def broke(self, error: WireError) -> None:
        """End the link: the peer has broken the protocol."""

    def broke_soon(self, error: WireError) -> None:
        """End the link as broken, in a later turn of the loop."""


class Rings:
    """The two rings of one link, at one end.

    Args:
        owner: the link.
        segment, peer: this process's memory and the peer's.
        rank: global rank of the peer.
        dialed: this end has dialed, and sends the messages; it asks for the rings.

    Attributes:
        waiting: frames for which there is no room now, first to last.
        on: what is posted goes by the ring.
        taking: a frame of the ring is being acted on, further up the stack.
        lender, borrower: where the receiver can read the sender's memory, at the end that sends, and at the
            one that receives.
    """

    def __init__(
        self, owner: RingOwner, segment: Segment, peer: PeerSegment, rank: int, dialed: bool
    ) -> None:
        self.waiting: deque[bytes] = deque()
        self.on = self.taking = False
        self._owner = owner
        self._segment = segment
        self._peer = peer
        self._rank = rank
        self._dialed = dialed
        self.lender: Lender | None = None
        self.borrower: Borrower | None = None
        self._waking: Waking | None = None
        self._at = 0  # of this end's area; 0: none yet
        self._size = RING if dialed else ANSWERS
        self._theirs: tuple[int, int] | None = None  # offset and size of the peer's
        self._over = False  # there are no rings any more
        self._engine = cast("_engine.Compiled", _engine.compiled)  # without it nothing is agreed on

    def wake_by(self, waking: Waking | None) -> None:
        """Use rings from now on, if the peer does; None: no more."""
        known = waking is not None and waking.knows(self._rank) and _engine.compiled is not None
        self._waking = waking if known else None
        if self._waking is None:
            self.turn_off()
        elif self._owner.consumer is not None:
            self._waking.watch(self._owner)
        elif self._theirs is not None and not self._dialed:
            self._answer()

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────

    def post(self, header: bytes, payload: memoryview | None) -> bool:
        """Send a frame by the ring; the payload is copied → False where it has to go over the socket."""
        producer, waking = self._owner.producer, self._waking
        if producer is None or waking is None:
            # The messages of the barrier with which a job begins bear no bytes; many links never bear more.
            if self._dialed and not self._at and (payload is not None or header[0] != _EAGER):
                self._ask()
            return False
        try:
            took = not self.waiting and producer.append(header, _EMPTY if payload is None else payload)
        except RingError as error:
            self._owner.broke_soon(WireError(str(error)))  # not from inside a call of the user's
            return True
        if not took:
            self.waiting.append(header if payload is None else header + payload)
            producer.clear = False
            if len(self.waiting) == 1:
                producer.wait(True)
                waking.watch(self._owner)  # which looks again: there may be room by now
        waking.wake(self._rank)
        return True

    def flow(self) -> None:
        """Send on what waits."""
        producer, waking = self._owner.producer, self._waking
        if not self.waiting or producer is None or waking is None:
            return
        try:
            while self.waiting:
                frame = memoryview(self.waiting[0])
                if not producer.append(bytes(frame[:HEADER]), frame[HEADER:]):
                    break
                self.waiting.popleft()
        except RingError as error:
            self._owner.broke_soon(WireError(str(error)))
            return
        waking.wake(self._rank)
        if not self.waiting:
            producer.wait(False)
            producer.clear = True
            self._owner.flowed()

    def turn_off(self) -> None:
        """Go back to the socket for good, with what waits."""
        if self._over:
            return
        self._over = True
        if self._owner.producer is not None:
            self._owner.producer, self.on = None, False
            waiting, self.waiting = self.waiting, deque()
            for frame in waiting:
                self._owner.say(frame)
            if waiting:
                self._owner.flowed()
        if self._at or self._theirs is not None:
            self._owner.say(pack(_RING, total=Switch.OFF))

    # ── agreeing ─────────────────────────────────────────────────────────────────────────────────────

    def learn(self, frame: Frame) -> None:
        """Act on a RING frame, which came over the socket."""
        if frame.word:
            self._meet(frame.word, frame.total, frame.part == 1)
        elif frame.total == Switch.OFF:
            self.drain()  # also what came since this buffer of the socket was begun
            self._owner.consumer = None
            self.turn_off()
        elif frame.total == Switch.ON and not self._dialed and self._at and self._owner.consumer is None:
            self._listen()
        else:
            raise WireError("a RING frame out of place")

    def _ask(self) -> None:
        if not self._over and self._waking is not None and self._take_area():
            self._owner.say(pack(_RING, word=self._at, total=self._size))

    def _borrow(self) -> None:
        """Find out whether the peer's memory can be read, and whether that pays on this machine."""
        assert self._theirs is not None
        peer, at = self._peer, self._theirs[0]
        remote = Remote(peer.pid, address_in(peer.view, at), peer.window.nonce)
        if remote.works and pays():
            self.borrower = Borrower(remote, words_of(peer.view, at), self._engine.fence)

    def _meet(self, at: int, size: int, reads: bool) -> None:
        """Note where the peer's area is."""
        if self._theirs is not None or (self._dialed and not self._at):
            raise WireError("a second RING frame, or one that nobody asked for")
        fits = not size % 8 and 2 * HEADER <= size <= _LARGEST
        if at < PAGE or at % ALIGN or not fits or at + area_bytes(size) > len(self._peer.view):
            raise WireError(f"a ring of {size} bytes at {at} of a segment of {len(self._peer.view)} bytes")
        self._theirs = at, size
        if not self._dialed:
            self._answer()
            return
        self._listen()
        if not self._over:
            self._owner.say(pack(_RING, total=Switch.ON))
            self._produce()
            if reads:
                self.lender = Lender(words_of(self._segment.view, self._at), self._engine.fence)

    def _answer(self) -> None:
        if not self._over and self._waking is not None and not self._at and self._take_area():
            self._borrow()
            self._owner.say(pack(_RING, word=self._at, total=self._size, part=self.borrower is not None))
            self._produce()

    def _take_area(self) -> bool:
        """Take an area of this process's segment, if there is room."""
        try:
            self._at = self._segment.heap.take(area_bytes(self._size))
        except MemoryError:
            self._over = True
            return False
        clear(self._segment.view, self._at, address_of(self._segment.view))
        return True

    def _produce(self) -> None:
        assert self._theirs is not None
        made = self._engine.Producer
        self._owner.producer = made(
            self._segment.view, self._at, self._size, self._peer.view, self._theirs[0]
        )
        self.on = True

    def _listen(self) -> None:
        assert self._theirs is not None
        self._owner.consumer = self._engine.Consumer(
            self._peer.view, *self._theirs, self._segment.view, self._at
        )
        if self._waking is not None:
            self._waking.watch(self._owner)
        self.take()

    # ── receiving ────────────────────────────────────────────────────────────────────────────────────

    def poll(self) -> bool:
        """Take what is there, for a caller that polls → whether there is a ring at all."""
        if self._owner.consumer is None:
            return False
        if self._waking is not None:
            self._waking.awake()
        self.take()
        return True

    def tell_room(self) -> None:
        """Wake the peer if it waits for the room that there is now."""
        if self._owner.consumer is not None:
            self._tell(self._owner.consumer)

    def _tell(self, consumer: _engine.Consumer) -> None:
        """Wake the peer if it waits for the room that there is now."""
        if consumer.awaited() and self._waking is not None:
            self._waking.wake(self._rank)

    def progress(self) -> bool:
        """Take what is there, and send on what waits → whether more may come."""
        self.take()
        if self.waiting:
            self.flow()
        return self._owner.consumer is not None or bool(self.waiting)

    def take(self) -> None:
        """Take what is in the ring, for about BURST bytes; then others have their turn."""
        consumer = self._owner.consumer
        if consumer is None or self.taking or not consumer.waiting():
            return
        self.taking = True
        moved = 0
        try:
            while moved < BURST and consumer.waiting() and self._owner.listens():
                moved += self._owner.deliver(consumer, BURST - moved)
                if self._owner.consumer is not consumer:
                    return  # as below
                if not consumer.waiting():
                    break
                record = consumer.first()
                if len(record) < HEADER:
                    raise WireError(f"a record of {len(record)} bytes in a ring")
                consumer.busy = True
                moved += self._act(consumer, record)
                consumer.busy = False
                if self._owner.consumer is not consumer:
                    return  # the link ended by it
        except RingError as error:
            self._owner.broke(WireError(str(error)))
            return
        except WireError as error:
            self._owner.broke(error)
            return
        finally:
            self.taking = consumer.busy = False
        self._tell(consumer)
        if self._waking is not None and consumer.waiting():
            self._waking.watch(self._owner)
        if self.waiting:
            self.flow()

    def _act(self, consumer: _engine.Consumer, record: memoryview) -> int:
        """Act on the first record of the ring, and go on behind it → how many bytes were moved."""
        if record[0] == _EAGER:  # most are
            size = HEADER + self._owner.take_eager(record)
            if self._owner.consumer is consumer:
                consumer.took(size)
            return size
        frame = parse(record)
        size = HEADER + payload_bytes(frame)
        if frame.type in (_RING, _GOODBYE) or size > len(record):
            raise WireError(f"a {Type(frame.type).name} frame of {frame.nbytes} bytes in a ring")
        try:
            self._owner.take_frame(frame, record[HEADER:size])
        finally:
            if self._owner.consumer is consumer:
                consumer.took(size)
        return size + frame.nbytes

    def drain(self) -> None:
        """Take all that is in the ring now."""
        consumer = self._owner.consumer
        if consumer is None or self.taking:
            return
        stop = consumer.head()
        while self._owner.consumer is consumer and consumer.waiting() and self._owner.listens():
            if consumer.taken >= stop:
                break  # what came since has its turn
            self.take()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    def close(self, parted: bool) -> None:
        """Let go of the memory. The area is given back only where the peer has said goodbye (`parted`): else
        it may look there still, and would find what others write."""
        self._over = True
        self.on = False
        for end in (self._owner.producer, self._owner.consumer):
            if end is not None:
                end.release()
        self._owner.producer = self._owner.consumer = self._waking = None
        self.lender = self.borrower = None
        self.waiting.clear()
        if self._at and parted:
            self._segment.heap.free(self._at)
            self._segment.on_idle()
        self._at = 0
