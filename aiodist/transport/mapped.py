"""Links between processes of one host: headers over a Unix socket, bulk through the sender's shared segment.

A fragment is copied into a free block of the sender's segment, which the receiver has mapped read-only; the
frame says where. The receiver reads it there, straight into its sink, and gives the block back. So a rank
writes its own memory only, and one that is out of blocks waits as it would for a full socket.

A link takes its blocks when a fragment needs one, and says where they begin. Where the segment has no room
for somebody else, and when the link ends, it gives them back, if the receiver has given back all. Else they
stay taken, because the receiver may still read them: after the link's end until the segment is closed.
"""

from __future__ import annotations

import asyncio
import socket

from aiodist.errors import WireError
from aiodist.shm.arena import PAGE
from aiodist.shm.blocks import BlockPool
from aiodist.shm.segment import PeerSegment, Segment
from aiodist.transport.base import FRAGMENT
from aiodist.transport.link import Message
from aiodist.transport.stream import StreamLink
from aiodist.wire.frame import Frame, Type, pack, payload_bytes

BLOCKS = 8
"""Blocks of FRAGMENT bytes of a link."""

INLINE = 4 * 1024
"""Bytes of the largest fragment that goes over the socket: a block costs more than the copy."""

_RELEASE_AT = 2  # blocks given back at a time, so that sender and receiver copy at the same time
_DATA, _MAPPED, _RELEASE, _BLOCKS = int(Type.DATA), int(Type.MAPPED), int(Type.RELEASE), int(Type.BLOCKS)


class MappedLink(StreamLink):
    """A link over a Unix socket, which it owns, and a shared segment, which it does not.

    Args:
        memory: at the sending end this process's segment; at the receiving end the peer's.
    """

    fragment = FRAGMENT

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        memory: Segment | PeerSegment,
        leftover: bytes = b"",
    ) -> None:
        super().__init__(loop, sock, leftover)
        self._memory: Segment | PeerSegment | None = memory
        self._view = memory.view
        self._sends = isinstance(memory, Segment)
        self._pool: BlockPool | None = None  # once blocks are taken
        self._blocks_at = 0  # where they begin
        self._starved = False  # room is False for want of a block
        self._to_release = 0

    # Sending end.

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

    # Ending.

    def _release(self) -> None:
        super()._release()
        self.reclaim()
        if isinstance(self._memory, Segment):
            self._memory.holders.discard(self)
        self._memory, self._view, self._pool = None, memoryview(b""), None
