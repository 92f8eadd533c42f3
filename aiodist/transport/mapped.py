"""Links between processes of one host: headers over a Unix socket, bulk through the sender's shared segment.

A fragment is copied into a free block of the sender's segment, which the receiver has mapped read-only; the
frame says where. The receiver reads it there, straight into its sink, and gives the block back. So a rank
writes its own memory only, and one that is out of blocks waits as it would for a full socket.

A small message goes by a ring in the same memory (`shm.ring`), and its receiver is woken only where it
sleeps: so one that polls needs no call to the system. What the ring has no room for goes over the socket.
Which of two messages arrives first does not matter, because they are matched by their numbers; and what a
ring holds is taken before the link's end is told.

A link takes its blocks when a fragment needs one, and says where they begin. Where the segment has no room
for somebody else, and when the link ends, it gives them back, if the receiver has given back all. Else they
stay taken, because the receiver may still read them: after the link's end until the segment is closed.
"""

from __future__ import annotations

import asyncio
import socket

from aiodist.errors import Tampered, WireError
from aiodist.shm.arena import PAGE
from aiodist.shm.blocks import BlockPool
from aiodist.shm.heap import ALIGN
from aiodist.shm.ring import RING, RING_BYTES, Consumer, Producer
from aiodist.shm.segment import PeerSegment, Segment
from aiodist.transport.base import FRAGMENT
from aiodist.transport.ending import Event
from aiodist.transport.link import Message, Waking
from aiodist.transport.stream import StreamLink
from aiodist.wire.frame import HEADER, Frame, Type, pack, parse, payload_bytes

BLOCKS = 8
"""Blocks of FRAGMENT bytes of a link."""

INLINE = 4 * 1024
"""Bytes of the largest fragment that goes over the socket: a block costs more than the copy."""

_RELEASE_AT = 2  # blocks given back at a time, so that sender and receiver copy at the same time
_TELL_AT = RING // 4  # bytes taken from a ring that are told together
_LOOKS = 8  # looks at a ring for one at the socket
_EAGER, _DATA, _MAPPED, _RELEASE = int(Type.EAGER), int(Type.DATA), int(Type.MAPPED), int(Type.RELEASE)
_BLOCKS, _RING, _CONSUMED = int(Type.BLOCKS), int(Type.RING), int(Type.CONSUMED)
_EMPTY = memoryview(b"")


class MappedLink(StreamLink):
    """A link over a Unix socket, which it owns, and a shared segment, which it does not.

    Args:
        memory: at the sending end this process's segment; at the receiving end the peer's.
        rank: global rank of the peer.
    """

    fragment = FRAGMENT

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        memory: Segment | PeerSegment,
        leftover: bytes = b"",
        *,
        rank: int = 0,
    ) -> None:
        super().__init__(loop, sock, leftover)
        self._memory: Segment | PeerSegment | None = memory
        self._view = memory.view
        self._sends = isinstance(memory, Segment)
        self._pool: BlockPool | None = None  # once blocks are taken
        self._blocks_at = 0  # where they begin
        self._starved = False  # room is False for want of a block
        self._to_release = 0
        self._rank = rank
        self._waking: Waking | None = None
        self._ring_at = 0  # of the sender's ring; 0: none yet
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._taking = False
        self._told = 0  # bytes taken from the ring that the sender knows of
        self._looks = 0

    def wake_by(self, waking: Waking | None) -> None:
        """Use a ring from now on; None: no more."""
        self._waking = waking if waking is not None and waking.knows(self._rank) else None
        if self._waking is not None and self._consumer is not None:
            self._waking.watch(self)

    # Sending end.

    def post(self, header: bytes, payload: memoryview | None = None, sealed: bool = False) -> None:
        if header[0] == _EAGER and self._waking is not None and self._out.is_open:
            ring = self._producer or self._take_ring()
            if ring is not None and ring.append(header, _EMPTY if payload is None else payload):
                self._waking.wake(self._rank)
                return
        super().post(header, payload, sealed)

    def _take_ring(self) -> Producer | None:
        """Take a ring, and say where it is; None where the segment has no room for it now."""
        if not isinstance(self._memory, Segment):
            return None
        try:
            self._ring_at = self._memory.heap.take(RING_BYTES)
        except MemoryError:
            return None
        self._producer = Producer(self._view, self._ring_at)
        super().post(pack(_RING, word=self._ring_at))
        return self._producer

    def _taken(self, total: int) -> None:
        if self._producer is None:
            raise WireError("a CONSUMED frame, and there is no ring")
        self._producer.took(total)

    def write(self, message: Message, start: int, stop: int) -> bool:
        nbytes = stop - start
        pool = self._pool
        if nbytes > INLINE and pool is None:
            pool = self._take_blocks()
            if not self._out.is_open:
                return False  # the peer is gone, and no block is out
        if nbytes <= INLINE or pool is None:
            return super().write(message, start, stop)
        at = self._blocks_at + pool.take() * FRAGMENT
        self._view[at : at + nbytes] = message.data[start:stop]
        self.post(message.header(_MAPPED, start, stop, at))
        if not pool:
            self._starved = True
            self.room = False
        return True

    def _take_blocks(self) -> BlockPool | None:
        """Take the blocks, and say where they begin; None where the segment has no room for them now."""
        if not isinstance(self._memory, Segment):
            return None
        try:
            self._blocks_at = self._memory.heap.take(BLOCKS * FRAGMENT, PAGE)
        except MemoryError:
            return None  # this fragment goes over the socket; the next one asks again
        self.post(pack(_BLOCKS, word=self._blocks_at))
        self._pool = BlockPool(BLOCKS)
        self._memory.holders.add(self)
        return self._pool

    def reclaim(self) -> None:
        """Give the blocks back, if the receiver has given back all (`segment.Holder`)."""
        if isinstance(self._memory, Segment) and self._pool is not None and len(self._pool) == BLOCKS:
            self._memory.heap.free(self._blocks_at)
            self._memory.holders.discard(self)
            self._pool = None

    def _make_room(self) -> None:
        if self._to_release:
            self._give_back()
        self._tell_taken()
        if not self._starved:
            super()._make_room()

    def _released(self, blocks: int) -> None:
        if self._pool is None:
            raise WireError("a RELEASE frame, and no block is out")
        self._pool.release(blocks)
        if len(self._pool) == BLOCKS and isinstance(self._memory, Segment):
            self._memory.on_idle()
        if self._starved:
            self._starved = False
            if not self._out.queue and self._out.is_open:
                super()._make_room()

    # Receiving end.

    _payload_of = staticmethod(payload_bytes)

    def _dispatch(self, frame: Frame, payload: memoryview) -> None:
        kind = frame.type
        if kind == _RELEASE:
            self._released(frame.word)
        elif kind == _BLOCKS:
            self._learn_blocks(frame.word)
        elif kind == _MAPPED:
            self._mapped(frame)
        elif kind == _RING:
            self._learn_ring(frame.word)
        elif kind == _CONSUMED:
            self._taken(frame.word)
        else:
            super()._dispatch(frame, payload)

    def _learn_blocks(self, at: int) -> None:
        """Note where the sender's blocks begin."""
        if self._sends or self._to_release:
            raise WireError("a BLOCKS frame from a receiver, or while blocks are out")
        if at < PAGE or at % PAGE or at + BLOCKS * FRAGMENT > len(self._view):
            raise WireError(f"blocks at {at} of a segment of {len(self._view)} bytes")
        self._blocks_at = at

    def _mapped(self, frame: Frame) -> None:
        block, rest = divmod(frame.word - self._blocks_at, FRAGMENT)
        outside = rest or not 0 <= block < BLOCKS or frame.nbytes > FRAGMENT
        if self._sends or not self._blocks_at or outside:
            raise WireError(f"a fragment of {frame.nbytes} bytes at {frame.word} of the segment")
        if self._to_release >> block & 1:
            raise WireError(f"a fragment in block {block}, which was not given back yet")
        payload = self._view[frame.word : frame.word + frame.nbytes]
        try:
            super()._dispatch(Frame(_DATA, *frame[1:]), payload)
        finally:
            if not self._ending.over:
                self._to_release |= 1 << block
                if self._to_release.bit_count() >= _RELEASE_AT:
                    self._give_back()

    def _parse(self) -> None:
        super()._parse()
        if self._to_release:
            self._give_back()

    def _give_back(self) -> None:
        """Give back blocks, unless the peer does not read: then it has no use for them."""
        if self.idle:
            blocks, self._to_release = self._to_release, 0
            self.post(pack(_RELEASE, word=blocks))

    def _learn_ring(self, at: int) -> None:
        """Note where the sender's ring is."""
        if self._sends or self._consumer is not None:
            raise WireError("a RING frame from a receiver, or a second one")
        if at < PAGE or at % ALIGN or at + RING_BYTES > len(self._view):
            raise WireError(f"a ring at {at} of a segment of {len(self._view)} bytes")
        self._consumer = Consumer(self._view, at)
        if self._waking is not None:
            self._waking.watch(self)
        self._take()

    def poll(self) -> None:
        if self._consumer is not None:
            if self._waking is not None:
                self._waking.awake()
            self._take()
            self._looks += 1
            if self._looks % _LOOKS:
                return
        super().poll()

    def progress(self) -> bool:
        """See `Waiting`."""
        self._take()
        return self._consumer is not None

    def failed(self, error: Exception) -> None:
        """See `Waiting`."""
        self._finish(Event.FAILED, f"{type(error).__name__}: {error}")

    def _take(self) -> None:
        """Take what is in the ring."""
        consumer = self._consumer
        if consumer is None or self._taking or not consumer.waiting():
            return
        self._taking = True
        stop = consumer.taken + RING  # then others have their turn
        try:
            while consumer.waiting() and consumer.taken < stop and self._user is not None:
                record = consumer.first()
                if len(record) < HEADER:
                    raise WireError(f"a record of {len(record)} bytes in a ring")
                frame = parse(record)
                size = HEADER + frame.nbytes
                if frame.type != _EAGER or size > len(record):
                    raise WireError(f"a {Type(frame.type).name} frame of {frame.nbytes} bytes in a ring")
                consumer.took(size)  # the sender is told later: until then the record stays as it is
                self._guard(self._user.received, frame, record[HEADER:size])
        except WireError as error:
            self._finish(Event.FAILED, f"protocol error: {error.message}")
        finally:
            self._taking = False
        self._tell_taken()

    def _tell_taken(self) -> None:
        """Tell the sender what was taken, once it is much; unless it does not read."""
        consumer = self._consumer
        if consumer is not None and consumer.taken - self._told >= _TELL_AT and self.idle:
            self._told = consumer.taken
            self.post(pack(_CONSUMED, word=consumer.taken))

    # Ending.

    def _finish(self, event: Event, cause: str | Tampered = "") -> None:
        if event is not Event.ALTERED:
            self._take()  # what the peer sent before counts
        super()._finish(event, cause)

    def _release(self) -> None:
        super()._release()
        self.reclaim()
        if isinstance(self._memory, Segment) and self._producer is not None and self._producer.empty:
            self._memory.heap.free(self._ring_at)
        self._producer = self._consumer = self._waking = None
        if isinstance(self._memory, Segment):
            self._memory.holders.discard(self)
        self._memory, self._view, self._pool = None, memoryview(b""), None
