"""Frames of calls between two processes, as pure functions.

    frame       u32 little-endian: bytes behind this head; u8 kind; u64 number of the call; then the body
    body        of CALL, STREAM, MESSAGE: f64 seconds left, u16 bytes of the name, the name, the payload
                of RESULT, RAISED, PART: the payload; of REFUSED, DROPPED: text; of GRANT: u64 bytes
                of CANCEL, GOODBYE: none; of PIECE: bytes that stand before the body of the next other frame
                with this number, except CANCEL and GRANT

A connection carries the calls of the process that dialed it. It sends CALL, STREAM and MESSAGE, each with a
number of its own, counted from 1 (a large one may come after later ones), CANCEL and GRANT. The other side
answers each of the first three with exactly one of RESULT, RAISED, REFUSED and DROPPED, after any number of
PARTs of a stream. Either side ends with GOODBYE. Payloads are those of `wire.objects`.

These bytes are read only behind a completed handshake. Still sizes are bounded before anything is kept.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from aiodist.errors import WireError

MAX_PAYLOAD = 128 << 20
"""Bytes of the arguments of a call, of a result, of a part or of a message, at most."""

MAX_NAME = 255
MAX_TEXT = 4096
_HEAD = struct.Struct("<IBQ")
HEAD = _HEAD.size
_ASK = struct.Struct("<dH")
_COUNT = struct.Struct("<Q")
MOST = MAX_PAYLOAD + _ASK.size + MAX_NAME
"""Bytes of a body, at most."""

_LARGE = 256 << 10  # from here on a body is gathered in memory of its own, and not copied out of another


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


ASKS: dict[int, Says] = {int(kind): kind for kind in (Says.CALL, Says.STREAM, Says.MESSAGE)}
ENDS = frozenset(map(int, (Says.RESULT, Says.RAISED, Says.REFUSED, Says.DROPPED)))
_KNOWN = frozenset(map(int, Says))


class Request(NamedTuple):
    """The body of a CALL, STREAM or MESSAGE.

    Args:
        left: seconds until the caller gives up.
        name: of the handler; '' of a message.
        payload: the arguments.
    """

    left: float
    name: str
    payload: memoryview


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


def asking(kind: Says, number: int, left: float, name: bytes, nbytes: int) -> bytes:
    """What stands before the payload in a frame of CALL, STREAM or MESSAGE."""
    size = _ASK.size + len(name) + nbytes
    return _HEAD.pack(size, kind, number) + _ASK.pack(left, len(name)) + name


def read_request(body: bytes | bytearray) -> Request:
    """The parts of a request. `WireError` unless it is one."""
    try:
        left, size = _ASK.unpack_from(body)
        end = _ASK.size + size
        name = str(body[_ASK.size : end], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"a call that cannot be read ({error})") from None
    if len(body) < end or size > MAX_NAME or not left >= 0:
        raise WireError("a call whose lengths contradict each other")
    return Request(left, name, memoryview(body)[end:])


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
        self._inbox = bytearray()
        self._large: bytearray | None = None  # the body that is being gathered
        self._missing = 0  # bytes of it
        self._head = (0, 0)  # its kind and number

    def feed(self, data: bytes | bytearray) -> list[Frame]:
        """The frames that are complete with `data`, in order.

        Raises:
            WireError: it is no frame, or larger than one may be; the stream is lost from here.
        """
        found: list[Frame] = []
        at = 0
        if self._large is not None:
            at = min(self._missing, len(data))
            self._large += memoryview(data)[:at]
            self._missing -= at
            if self._missing:
                return found
            found.append((*self._head, self._large))
            self._large = None
        inbox = data[at:] if at else data
        if self._inbox:
            self._inbox += inbox
            inbox = self._inbox
        at = self._cut(inbox, found)
        self._inbox = bytearray(inbox[at:]) if at < len(inbox) else bytearray()
        return found

    def _cut(self, inbox: bytes | bytearray, found: list[Frame]) -> int:
        """Take whole frames, and begin to gather a large one; how many bytes were taken."""
        at, end = 0, len(inbox)
        whole = type(inbox) is bytes
        while end - at >= _HEAD.size:
            size, kind, number = _HEAD.unpack_from(inbox, at)
            if size > MOST or kind not in _KNOWN:
                raise WireError(f"a frame of {size} bytes and kind {kind}, which calls do not have")
            start = at + _HEAD.size
            stop = start + size
            if stop > end:
                if size >= _LARGE:
                    self._large = bytearray(memoryview(inbox)[start:end])
                    self._missing, self._head = stop - end, (kind, number)
                    return end
                break
            found.append((kind, number, inbox[start:stop] if whole else bytes(memoryview(inbox)[start:stop])))
            at = stop
        return at
