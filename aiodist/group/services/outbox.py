"""Large frames on their way out: they leave in pieces, in turns, so that small frames go between them. Pure.

A lane is what keeps its order: a call, a stream, or all messages. Up to `AT_ONCE` lanes have a frame of which
a part has left; the next ones wait. So who receives has as many unfinished frames at most (`Pieces`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from aiodist.base.errors import WireError
from aiodist.net.wire.calls import MOST, PIECE, Says, head

AT_ONCE = 4


class _Outgoing:
    """A frame that has not left, or not whole."""

    __slots__ = ("at", "body", "kind", "nbytes", "number")

    def __init__(self, kind: Says, number: int, body: Sequence[bytes | memoryview]) -> None:
        self.kind = kind
        self.number = number
        self.body = deque(memoryview(one).cast("B") for one in body if len(one))
        self.nbytes = sum(map(len, self.body))

    def cut(self) -> list[bytes | memoryview]:
        """The next piece, as a frame; of no more than its size."""
        size = min(self.nbytes, PIECE)
        self.nbytes -= size
        kind = Says.PIECE if self.nbytes else self.kind
        cut: list[bytes | memoryview] = [head(kind, self.number, size)]
        while size:
            first = self.body.popleft()
            if len(first) > size:
                self.body.appendleft(first[size:])
                first = first[:size]
            cut.append(first)
            size -= len(first)
        return cut


class Outbox:
    """The frames of one connection that leave in turns.

    Attributes:
        nbytes: of their bodies.
        lanes: that have frames.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self.lanes: dict[int, deque[_Outgoing]] = {}
        self._turns: deque[int] = deque()  # lanes that send
        self._waiting: deque[int] = deque()

    def add(self, lane: int, kind: Says, number: int, body: Sequence[bytes | memoryview]) -> None:
        """Put a frame behind those of its lane."""
        one = _Outgoing(kind, number, body)
        self.nbytes += one.nbytes
        if lane in self.lanes:
            self.lanes[lane].append(one)
            return
        self.lanes[lane] = deque([one])
        (self._turns if len(self._turns) < AT_ONCE else self._waiting).append(lane)

    def cut(self) -> list[bytes | memoryview]:
        """The next piece of whose turn it is. There has to be one."""
        lane = self._turns.popleft()
        frames = self.lanes[lane]
        before = frames[0].nbytes
        cut = frames[0].cut()
        self.nbytes -= before - frames[0].nbytes
        if not frames[0].nbytes:
            frames.popleft()
        if frames:
            self._turns.append(lane)
        else:
            self._end(lane)
        return cut

    def drop(self, lane: int, number: int) -> None:
        """Send no more of a frame. The other side has to be told, in case a part has left."""
        frames = self.lanes.get(lane)
        for one in [one for one in frames or () if one.number == number]:
            assert frames is not None
            frames.remove(one)
            self.nbytes -= one.nbytes
            if not frames:
                (self._turns if lane in self._turns else self._waiting).remove(lane)
                self._end(lane)

    def numbers(self) -> Iterator[int]:
        """The calls whose frames have not left whole."""
        return (one.number for frames in self.lanes.values() for one in frames)

    def clear(self) -> None:
        """Drop all."""
        self.lanes.clear()
        self._turns.clear()
        self._waiting.clear()
        self.nbytes = 0

    def _end(self, lane: int) -> None:
        del self.lanes[lane]
        if self._waiting and len(self._turns) < AT_ONCE:
            self._turns.append(self._waiting.popleft())


class Pieces:
    """The parts that have come of frames that are not whole.

    Attributes:
        bodies: by the numbers of their calls.
    """

    def __init__(self) -> None:
        self.bodies: dict[int, bytearray] = {}

    def add(self, number: int, piece: bytes | bytearray) -> None:
        """Keep a piece. `WireError` where they are too many or too large."""
        body = self.bodies.get(number)
        if body is None:
            if len(self.bodies) >= AT_ONCE:
                raise WireError(f"pieces of more than {AT_ONCE} frames at once")
            body = self.bodies[number] = bytearray()
        if len(body) + len(piece) > MOST:
            raise WireError(f"a frame in pieces of more than {MOST} bytes")
        body += piece

    def whole(self, number: int, last: bytes | bytearray) -> bytes | bytearray:
        """The body of a frame whose last, or only, bytes have come."""
        body = self.bodies.pop(number, None)
        if body is None:
            return last
        if len(body) + len(last) > MOST:
            raise WireError(f"a frame in pieces of more than {MOST} bytes")
        body += last
        return body

    def drop(self, number: int) -> None:
        """Forget what came of a frame."""
        self.bodies.pop(number, None)
