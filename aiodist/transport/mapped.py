"""Links between processes of one host: headers over a Unix socket, bulk through the sender's arena.

A fragment is copied into a free block of an arena that the receiver has mapped read-only; the frame
says where. The receiver reads it there, straight into its sink, and gives the block back. So a rank
writes its own memory only, and one that is out of blocks waits as it would for a full socket.
"""

from __future__ import annotations

import asyncio
import socket

from aiodist.errors import WireError
from aiodist.shm.arena import PAGE, Arena, Window
from aiodist.shm.blocks import BlockPool
from aiodist.transport.base import FRAGMENT, Key
from aiodist.transport.stream import StreamLink
from aiodist.wire.frame import Frame, Type, pack, payload_bytes

BLOCKS = 8
"""Blocks of FRAGMENT bytes in a link's arena."""

INLINE = 4 * 1024
"""Bytes of the largest fragment that goes over the socket: a block costs more than the copy."""

ARENA_BYTES = BLOCKS * FRAGMENT

_RELEASE_AT = 2  # blocks given back at a time, so that sender and receiver copy at the same time
_DATA, _MAPPED, _RELEASE = int(Type.DATA), int(Type.MAPPED), int(Type.RELEASE)


class MappedLink(StreamLink):
    """A link over a Unix socket and one arena, both of which it owns.

    Args:
        memory: at the sending end its `Arena`, of ARENA_BYTES; at the receiving end the `Window` on it.
    """

    fragment = FRAGMENT

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        memory: Arena | Window,
        leftover: bytes = b"",
    ) -> None:
        super().__init__(loop, sock, leftover)
        self._memory = memory
        self._view = memory.view
        self._pool = BlockPool(BLOCKS) if isinstance(memory, Arena) else None
        self._starved = False  # room is False for want of a block
        self._to_release = 0

    # Sending end.

    def write(
        self,
        key: Key,
        payload: memoryview,
        offset: int,
        total: int,
        signature: bytes,
        sealed: bool = False,
    ) -> bool:
        nbytes = len(payload)
        pool = self._pool
        if nbytes <= INLINE or pool is None:
            return super().write(key, payload, offset, total, signature)
        at = PAGE + pool.take() * FRAGMENT
        self._view[at : at + nbytes] = payload
        self.post(
            pack(_MAPPED, *key, nbytes=nbytes, offset=offset, total=total, word=at, signature=signature)
        )
        if not pool:
            self._starved = True
            self.room = False
        return True

    def _make_room(self) -> None:
        if self._to_release:
            self._give_back()
        if not self._starved:
            super()._make_room()

    def _released(self, blocks: int) -> None:
        if self._pool is None:
            raise WireError("a RELEASE frame from a sender")
        self._pool.release(blocks)
        if self._starved:
            self._starved = False
            if not self._queue and not self._write_error:
                super()._make_room()

    # Receiving end.

    _payload_of = staticmethod(payload_bytes)

    def _dispatch(self, frame: Frame, payload: memoryview) -> None:
        kind = frame.type
        if kind == _RELEASE:
            self._released(frame.word)
        elif kind == _MAPPED:
            self._mapped(frame)
        else:
            super()._dispatch(frame, payload)

    def _mapped(self, frame: Frame) -> None:
        block, rest = divmod(frame.word - PAGE, FRAGMENT)
        if self._pool is not None or rest or not 0 <= block < BLOCKS or frame.nbytes > FRAGMENT:
            raise WireError(f"a fragment of {frame.nbytes} bytes at {frame.word} of the arena")
        if self._to_release >> block & 1:
            raise WireError(f"a fragment in block {block} of the arena, which was not given back yet")
        payload = self._view[frame.word : frame.word + frame.nbytes]
        try:
            super()._dispatch(Frame(_DATA, *frame[1:]), payload)
        finally:
            if not self._over:
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
        self._view = memoryview(b"")
        self._memory.close()
