"""Frames of calls between two processes, as pure functions.

    frame       u32 little-endian: bytes behind this head; u8 kind; u64 number of the call; then the body,
                which is no larger than a piece and what a request has before its payload
    body        of CALL, STREAM, MESSAGE: f64 seconds left, u16 bytes of the name, the name, the payload
                of RESULT, RAISED, PART: the payload; of REFUSED, DROPPED: text; of GRANT: u64 bytes
                of CANCEL, GOODBYE, ALTERED: none; of PIECE: bytes that stand before the body of the next
                other frame with this number, except CANCEL and GRANT

A connection carries the calls of the process that dialed it. It sends CALL, STREAM and MESSAGE, each with a
number of its own, counted from 1 (a large one may come after later ones), CANCEL and GRANT. The other side
answers each of the first three with exactly one of RESULT, RAISED, REFUSED and DROPPED, after any number of
PARTs of a stream. Either side ends with GOODBYE or ALTERED. Payloads are those of `wire.objects`.

These bytes are read only behind a completed handshake. Still sizes are bounded before anything is kept.
"""

from __future__ import annotations

import enum
import struct

from aiodist.base.errors import WireError

MAX_PAYLOAD = 128 << 20
"""Bytes of the arguments of a call, of a result, of a part or of a message, at most."""

MAX_NAME = 255
MAX_TEXT = 4096
_HEAD = struct.Struct("<IBQ")
HEAD = _HEAD.size
_ASK = struct.Struct("<dH")
_BEFORE = _ASK.size
_ASKING = struct.Struct("<IBQdH")  # both, without a gap
_COUNT = struct.Struct("<Q")

PIECE = 64 << 10
"""Bytes of a body from which on it leaves in pieces of this size."""

MOST = MAX_PAYLOAD + _BEFORE + MAX_NAME
"""Bytes of a body in pieces, at most."""

_MOST_AT_ONCE = PIECE + _BEFORE + MAX_NAME  # bytes of the body of one frame


class Says(enum.IntEnum):
    """The kinds of frames. Part of the protocol: append, never renumber."""

    CALL = 1
    STREAM = 2
    MESSAGE = 3
    CANCEL = 4  # the caller does not want it any more
    GRANT = 5  # so many more bytes of parts may come
    RESULT = 16  # it ran to its end; of a stream: all parts were sent
    RAISED = 17  # the handler raised
    REFUSED = 18  # it has not begun, and never will
    DROPPED = 19  # it had begun, and was stopped: by the caller, its deadline or the end of the process
    PART = 20
    PIECE = 21  # bytes of the body of a frame with this number, which comes behind its pieces
    GOODBYE = 32
    ALTERED = 33  # what came from the other side is not what it sent, so nothing more is read


ASKS: dict[int, Says] = {int(kind): kind for kind in (Says.CALL, Says.STREAM, Says.MESSAGE)}
ENDS = frozenset(map(int, (Says.RESULT, Says.RAISED, Says.REFUSED, Says.DROPPED)))
_KNOWN = frozenset(map(int, Says))


Request = tuple[float, str, bytes | memoryview]
"""Seconds until the caller gives up, name of the handler ('' of a message), payload."""


def head(kind: Says, number: int, nbytes: int) -> bytes:
    """The head of a frame, for a body that is sent behind it."""
    return _HEAD.pack(nbytes, kind, number)


def frame(kind: Says, number: int, body: bytes = b"") -> bytes:
    """A whole frame."""
    return _HEAD.pack(len(body), kind, number) + body


def text_frame(kind: Says, number: int, text: str) -> bytes:
    """A frame of REFUSED or DROPPED."""
    return frame(kind, number, text.encode()[:MAX_TEXT])


def grant(number: int, nbytes: int) -> bytes:
    """A frame of GRANT."""
    return frame(Says.GRANT, number, _COUNT.pack(nbytes))


def request(kind: Says, number: int, left: float, name: bytes, payload: bytes) -> bytes:
    """A whole frame of CALL, STREAM or MESSAGE."""
    size = len(name)
    before = _ASKING.pack(_BEFORE + size + len(payload), kind, number, left, size)
    return before + name + payload


def request_head(left: float, name: bytes) -> bytes:
    """What stands before the payload in the body of a CALL, STREAM or MESSAGE."""
    return _ASK.pack(left, len(name)) + name


def read_request(body: bytes | bytearray) -> Request:
    """The parts of a request. `WireError` unless it is one."""
    try:
        left, size = _ASK.unpack_from(body)
        end = _BEFORE + size
        name = body[_BEFORE:end].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"a call that cannot be read ({error})") from None
    nbytes = len(body)
    if nbytes < end or size > MAX_NAME or not left >= 0:
        raise WireError("a call whose lengths contradict each other")
    return left, name, bytes(body[end:]) if nbytes <= PIECE else memoryview(body)[end:]


def read_grant(body: bytes | bytearray) -> int:
    """The bytes that are granted. `WireError` unless it says that."""
    if len(body) != _COUNT.size:
        raise WireError("a grant that cannot be read")
    count: int = _COUNT.unpack(body)[0]
    return count


def read_text(body: bytes | bytearray) -> str:
    """The text of REFUSED or DROPPED."""
    return bytes(body[:MAX_TEXT]).decode("utf-8", "replace")


Frame = tuple[int, int, bytes | bytearray]
"""Kind, number, body."""


class Frames:
    """A parser that cuts a stream of bytes into frames. It keeps at most one that is not whole."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._needed = 0  # bytes that it has to have before there is something to cut

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with `data`, in order.

        Raises:
            WireError: it is no frame, or larger than one may be; the stream is lost from here.
        """
        found: list[Frame] = []
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return found
            data = bytes(self._rest)
        at, end = 0, len(data)
        needed = HEAD
        while (start := at + HEAD) <= end:
            size, kind, number = _HEAD.unpack_from(data, at)
            if size > _MOST_AT_ONCE or kind not in _KNOWN:
                raise WireError(f"a frame of {size} bytes and kind {kind}, which calls do not have")
            stop = start + size
            if stop > end:
                needed = HEAD + size
                break
            found.append((kind, number, data[start:stop]))
            at = stop
        self._rest = bytearray(data[at:])
        self._needed = needed
        return found
