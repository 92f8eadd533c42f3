"""Links between processes of one host: a Unix socket, and both processes' shared segments.

A large fragment is lent where the receiver can read the sender's memory, and that pays (`lending`). Else it
is copied into a free block of the sender's segment, which the receiver has mapped read-only; the frame says
where. The receiver reads it there, straight into its sink, and gives the block back. So a rank writes its own
memory only, and one that is out of blocks waits as it would for a full socket.

Frames go by rings in the same memories, which need no call to the system (`rings`), once both ends have
agreed on them.

A link takes its blocks when a fragment needs one, and says where they begin. Where the segment has no room
for somebody else, and when the link ends, it gives them back, if the receiver has given back all. Else they
stay taken, because the receiver may still read them: after the link's end until the segment is closed.
"""

from __future__ import annotations

import asyncio
import socket

from aiodist import _engine
from aiodist.base.errors import Tampered, WireError
from aiodist.net.wire.frame import Frame, Type, pack, parse, payload_bytes
from aiodist.transport.base import FRAGMENT
from aiodist.transport.ending import EndingEvent
from aiodist.transport.link import Handed, Message, Waking
from aiodist.transport.rings import Rings
from aiodist.transport.shm.arena import PAGE
from aiodist.transport.shm.blocks import BlockPool
from aiodist.transport.shm.heap import ALIGN
from aiodist.transport.shm.segment import PeerSegment, Segment
from aiodist.transport.stream import StreamLink

BLOCKS = 8
"""Blocks of FRAGMENT bytes of a link."""

INLINE = 4 * 1024
"""Bytes of the largest fragment that goes with its header: a block costs more than the copy."""

_RELEASE_AT = 2  # blocks given back at a time, so that sender and receiver copy at the same time
_DATA, _MAPPED, _RELEASE = int(Type.DATA), int(Type.MAPPED), int(Type.RELEASE)
_BLOCKS, _RING, _GOODBYE = int(Type.BLOCKS), int(Type.RING), int(Type.GOODBYE)
_LENT, _RETURNED = int(Type.LENT), int(Type.RETURNED)


class MappedLink(StreamLink):
    """A link over a Unix socket, which it owns, and two shared segments, which it does not.

    Args:
        segment, peer: this process's segment, and the peer's.
        rank: global rank of the peer.
        dialed: this end sends the messages.
    """

    fragment = FRAGMENT

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        segment: Segment,
        peer: PeerSegment,
        leftover: bytes = b"",
        *,
        rank: int = 0,
        dialed: bool,
    ) -> None:
        super().__init__(loop, sock, leftover)
        self._segment: Segment = segment
        self._theirs = peer.view
        self._sends = dialed
        self._pool: BlockPool | None = None  # once blocks are taken
        self._blocks_at = 0  # where they begin
        self._starved = False  # room is False for want of a block
        self._to_release = 0
        self._to_return = 0  # so many lent fragments were read, which the sender has yet to hear of
        self._lends = False  # the next fragment is lent
        self._rings = Rings(self, segment, peer, rank, dialed)
        self._parted = False  # the peer has said goodbye

    def wake_by(self, waking: Waking | None) -> None:
        """Use rings from now on; None: no more, since the memory is about to go."""
        self._rings.wake_by(waking)

    @property
    def idle(self) -> bool:
        return not (self._out.queue or self._rings.waiting)

    # Sending end.

    def post(self, header: bytes, payload: memoryview | None = None, sealed: bool = False) -> None:
        if header[0] == _GOODBYE:
            self._rings.turn_off()
        elif self._out.is_open and self._rings.post(header, payload):
            if self._rings.waiting:
                self.room = False
            return
        super().post(header, payload, sealed)

    def piece(self, message: Message) -> int:
        lender = self._rings.lender
        piece = 0 if lender is None else lender.piece(message)
        self._lends = piece > 0
        return piece or FRAGMENT

    def write(self, message: Message, start: int, stop: int) -> Handed:
        nbytes = stop - start
        lender = self._rings.lender
        if self._lends and lender is not None:
            self._lends = False
            lender.lend(message)
            self.post(message.header(_LENT, start, stop, message.address + start))
            if lender.full:
                self.room = False
            return Handed.LENT
        pool = self._pool
        if nbytes > INLINE and pool is None:
            pool = self._take_blocks()
            if not self._out.is_open:
                return Handed.BORROWED  # the peer is gone, and no block is out
        if nbytes > INLINE and pool is None and self._rings.on:
            self._rings.turn_off()  # they have no room for such a fragment, and it must not overtake
        if nbytes <= INLINE and self._rings.on:
            self.post(message.header(_DATA, start, stop), message.data[start:stop])
            return Handed.TAKEN
        if nbytes <= INLINE or pool is None:
            return super().write(message, start, stop)
        at = self._blocks_at + pool.take() * FRAGMENT
        self._segment.view[at : at + nbytes] = message.data[start:stop]
        self.post(message.header(_MAPPED, start, stop, at))
        if not pool:
            self._starved = True
            self.room = False
        return Handed.TAKEN

    def withdraw(self, context: int) -> None:
        lender = self._rings.lender
        if lender is not None:
            lender.withdraw(lambda message: message.key.context == context)

    def _take_blocks(self) -> BlockPool | None:
        """Take the blocks, and say where they begin; None where the segment has no room for them now."""
        try:
            self._blocks_at = self._segment.heap.take_large(BLOCKS * FRAGMENT)
        except MemoryError:
            return None  # this fragment goes over the socket; the next one asks again
        self.post(pack(_BLOCKS, word=self._blocks_at))
        self._pool = BlockPool(BLOCKS)
        self._segment.holders.add(self)
        return self._pool

    def reclaim(self) -> None:
        """Give the blocks back, if the receiver has given back all (`segment.Holder`)."""
        if self._pool is not None and len(self._pool) == BLOCKS:
            self._segment.heap.free(self._blocks_at)
            self._segment.holders.discard(self)
            self._pool = None

    def _make_room(self) -> None:
        self._give_back_rest()
        lender = self._rings.lender
        if not (self._starved or self._rings.waiting or (lender is not None and lender.full)):
            super()._make_room()

    def _released(self, blocks: int) -> None:
        if self._pool is None:
            raise WireError("a RELEASE frame, and no block is out")
        self._pool.release(blocks)
        if len(self._pool) == BLOCKS:
            self._segment.on_idle()
        if self._starved:
            self._starved = False
            self.flowed()

    def _returned(self, count: int) -> None:
        lender = self._rings.lender
        if lender is None:
            raise WireError("a RETURNED frame, and nothing is lent")
        full = lender.full
        for message in lender.returned(count):
            if self._user is not None:
                self._guard(self._user.returned, message)
        if full:
            self.flowed()

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
        elif kind == _LENT:
            self._borrow(frame)
        elif kind == _RETURNED:
            self._returned(frame.word)
        elif kind == _RING:
            self._rings.learn(frame)
        else:
            self._parted = kind == _GOODBYE
            super()._dispatch(frame, payload)

    def _learn_blocks(self, at: int) -> None:
        """Note where the sender's blocks begin."""
        if self._sends or self._to_release:
            raise WireError("a BLOCKS frame from a receiver, or while blocks are out")
        if at < PAGE or at % ALIGN or at + BLOCKS * FRAGMENT > len(self._theirs):
            raise WireError(f"blocks at {at} of a segment of {len(self._theirs)} bytes")
        self._blocks_at = at

    def _mapped(self, frame: Frame) -> None:
        block, rest = divmod(frame.word - self._blocks_at, FRAGMENT)
        outside = rest or not 0 <= block < BLOCKS or frame.nbytes > FRAGMENT
        if self._sends or not self._blocks_at or outside:
            raise WireError(f"a fragment of {frame.nbytes} bytes at {frame.word} of the segment")
        if self._to_release >> block & 1:
            raise WireError(f"a fragment in block {block}, which was not given back yet")
        payload = self._theirs[frame.word : frame.word + frame.nbytes]
        try:
            super()._dispatch(Frame(_DATA, *frame[1:]), payload)
        finally:
            if not self._ending.over:
                self._to_release |= 1 << block
                if self._to_release.bit_count() >= _RELEASE_AT:
                    self._give_back()

    def _borrow(self, frame: Frame) -> None:
        """Read a lent fragment."""
        borrower = self._rings.borrower
        if borrower is None:
            raise WireError("a LENT frame, and the sender's memory cannot be read")
        try:
            if not borrower.take(frame, self._user, self._guard):
                self._finish(EndingEvent.FAILED, f"its memory at {frame.word:#x} cannot be read from here")
        finally:
            if not self._ending.over:
                self._to_return = borrower.done
                self._give_back()

    def _parse(self) -> None:
        self._rings.drain()  # what the peer put there came first
        if not self._ending.over:
            super()._parse()
        self._give_back_rest()

    def _give_back_rest(self) -> None:
        """Give back the last blocks of several frames that were acted on together."""
        if self._to_release or self._to_return:
            self._give_back()

    def _give_back(self, last: bool = False) -> None:
        """Give back blocks and what was lent, unless the peer does not read: then it has no use for them.

        Args:
            last: the link is about to end, and the peer learns now or never what was read.
        """
        if self.idle or last:
            blocks, self._to_release = self._to_release, 0
            count, self._to_return = self._to_return, 0
            if blocks:
                self.post(pack(_RELEASE, word=blocks))
            if count:
                self.post(pack(_RETURNED, word=count))

    def poll(self) -> None:
        if self._rings.taking:
            return  # what is behind has its turn when this is done
        if not self._rings.poll():
            super().poll()
        elif self._to_release or self._to_return:
            self._give_back()

    # Of `rings.Owner`.

    def progress(self) -> bool:
        """Go on with what is in the rings → whether more may come."""
        waits = self._rings.progress()
        self._give_back_rest()
        return waits

    def failed(self, error: Exception) -> None:
        """End the link: something raised that must not."""
        self._finish(EndingEvent.FAILED, f"{type(error).__name__}: {error}")

    def say(self, header: bytes) -> None:
        """Send a frame over the socket."""
        super().post(header)

    def deliver(self, consumer: _engine.Consumer, most: int) -> int:
        """Give receives that wait for them the small messages at the beginning of the ring."""
        if self._sends or self._user is None or _engine.compiled is None:
            return 0
        return _engine.compiled.deliver(consumer, self._user, most)

    def tell_room(self) -> None:
        """Wake the peer if it waits for the room in the ring that there is now."""
        self._rings.tell_room()

    def take_eager(self, record: memoryview) -> int:
        """Act on an EAGER frame of the ring → its payload's bytes."""
        user = self._user
        if user is None:
            raise WireError("an EAGER frame, and nobody to take it")
        try:
            return user.eager(record)
        except WireError:
            raise
        except Exception as error:
            self._callback_failed(error)
            return parse(record).nbytes

    def take_frame(self, frame: Frame, payload: memoryview) -> None:
        """Act on a frame of the ring."""
        self._dispatch(frame, payload)

    def listens(self) -> bool:
        """Whether frames have a user."""
        return self._user is not None

    def flowed(self) -> None:
        """Write on, if nothing waits."""
        if self.idle and self._out.is_open:
            self._make_room()

    def broke(self, error: WireError) -> None:
        """End the link: nonsense was in the ring."""
        self._finish(EndingEvent.FAILED, f"protocol error: {error.message}")

    def broke_soon(self, error: WireError) -> None:
        """End the link as broken, from a callback of the loop."""
        self._loop.call_soon(self.broke, error)

    # Ending.

    def close(self) -> None:
        self._give_back(last=True)
        super().close()

    def _finish(self, event: EndingEvent, cause: str | Tampered = "") -> None:
        if event is not EndingEvent.ALTERED:
            self._rings.drain()  # what the peer sent before counts
        super()._finish(event, cause)

    def _stop(self) -> None:
        if self._rings.lender is not None:
            self._rings.lender.withdraw(lambda message: True)
        super()._stop()

    def _release(self) -> None:
        super()._release()
        self.reclaim()
        self._rings.close(self._parted)
        self._segment.holders.discard(self)
        self._theirs, self._pool = memoryview(b""), None
