"""The receiving half of matching: stored eager messages, offers, posted receives, READY and credit.

READY is said once for a message: when a receive larger than EAGER_MESSAGE is posted, or when a posted
receive and an offer meet. From then on the bytes have a place: they go straight into the sink, or
through one scratch segment into a `Fold`. What arrives for a receive that was cancelled meanwhile goes to the
same scratch and is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

from aiodist.environment.tuning import EAGER_BUDGET
from aiodist.errors import UsageError, WireError
from aiodist.transport.base import EAGER_MESSAGE, SEGMENT, Done, Incoming, Into, Key, Sink
from aiodist.transport.link import Link
from aiodist.wire.frame import HEADER, PAYLOAD_LIMIT, Frame, Type, pack

_EAGER, _OFFER, _DATA = int(Type.EAGER), int(Type.OFFER), int(Type.DATA)

Arrived = Callable[[int, Key, bytes, int], None]


class _Receive:
    """A posted receive; `got` counts the bytes that its sink has."""

    __slots__ = ("announced", "done", "got", "key", "nbytes", "ready", "sink")

    def __init__(self, key: Key, nbytes: int, sink: Sink, done: Done, announced: bool) -> None:
        self.key = key
        self.nbytes = nbytes
        self.sink = sink
        self.done = done
        self.got = 0
        self.ready = False
        self.announced = announced


class _Stored:
    """A message that no receive was posted for: its bytes, or None where it is only offered."""

    __slots__ = ("data", "nbytes", "signature")

    def __init__(self, nbytes: int, signature: bytes, data: bytes | None) -> None:
        self.nbytes = nbytes
        self.signature = signature
        self.data = data


class Receiver(Incoming):
    """An `Incoming` over whatever link it is given. Also the link's user.

    Args:
        rank: the peer.
        arrived: the observer's method, called as (rank, key, signature, nbytes).
        on_end: called as (rank, goodbye, cause) when the link ends by the peer or by accident.
        eager_budget: the sender's; a quarter of it is returned at a time, and no more is kept of a context.
        retired: contexts that are dead; shared by the channels of an endpoint, of which there may be many.
    """

    def __init__(
        self,
        rank: int,
        arrived: Arrived,
        on_end: Callable[[int, bool, str], None],
        *,
        eager_budget: int = EAGER_BUDGET,
        retired: set[int] | None = None,
    ) -> None:
        self.rank = rank
        self.link: Link | None = None
        self._arrived = arrived
        self._on_end = on_end
        self._budget = eager_budget
        self._batch = eager_budget // 4
        self._posted: dict[Key, _Receive] = {}
        self._stored: dict[Key, _Stored] = {}
        self._kept: dict[int, int] = {}  # context → eager bytes that are stored, with their headers
        self._owed: dict[int, int] = {}  # context → credit not yet returned
        self._retired = set() if retired is None else retired
        self._cancelled: set[int] = set()
        self._arriving: _Receive | None = None  # its segment is being received piecemeal
        self._scratch: memoryview | None = None

    # Incoming.

    def recv(self, key: Key, nbytes: int, sink: Sink, done: Done) -> bool:
        if key[0] in self._retired:
            return False
        if key in self._posted:
            raise UsageError(f"a receive from rank {self.rank} is posted already under {key}")
        stored = self._stored.get(key)
        matches = stored is not None and stored.nbytes == nbytes
        if stored is not None and matches:
            del self._stored[key]
            if stored.data is not None:
                self._kept[key[0]] -= nbytes + HEADER
                self._deliver(sink, memoryview(stored.data))
                self._credit(key[0], nbytes)
                return True
        receive = self._posted[key] = _Receive(key, nbytes, sink, done, stored is not None)
        if matches or (stored is None and nbytes > EAGER_MESSAGE):
            self._say_ready(receive)
        return False

    def poll(self) -> None:
        if self.link is not None:
            self.link.poll()

    def cancel(self, context: int) -> None:
        self._cancelled.add(context)
        for key in [key for key in self._posted if key.context == context]:
            del self._posted[key]
        arriving = self._arriving
        if arriving is not None and arriving.key.context == context:
            self._arriving = None
            if self.link is not None and isinstance(arriving.sink, Into):
                self.link.divert(self._scratch_of(PAYLOAD_LIMIT))

    def retire(self, context: int) -> None:
        self._retired.add(context)
        self.cancel(context)
        self._cancelled.discard(context)
        self._owed.pop(context, None)
        self._kept.pop(context, None)
        for key in [key for key in self._stored if key.context == context]:
            del self._stored[key]

    def pending(self, context: int, stream: int) -> list[tuple[int, int, bytes]]:
        return sorted(
            (key.seq, stored.nbytes, stored.signature)
            for key, stored in self._stored.items()
            if key.context == context and key.stream == stream and key.part == 0 and key not in self._posted
        )

    # The owner's side.

    def attach(self, link: Link) -> None:
        """The peer's link is here: say READY for what was posted before. Called from the loop."""
        self.link = link
        link.start(self)
        for receive in self._posted.values():
            if receive.nbytes > EAGER_MESSAGE and not receive.announced:
                self._say_ready(receive)

    def close(self, on_closed: Callable[[], None]) -> None:
        """Tell the peer goodbye and forget everything; `on_closed` is called when the link is gone."""
        link = self.link
        self._forget()
        if link is None:
            on_closed()
        else:
            link.on_closed = on_closed
            link.close()

    def kill(self) -> None:
        """End the link at once and forget the posted receives. Stored messages can still be received."""
        link = self.link
        self._forget()
        if link is not None:
            link.kill()

    # LinkUser.

    def received(self, frame: Frame, payload: memoryview) -> None:
        kind = frame.type
        if kind == _EAGER:
            self._eager(frame, payload)
        elif kind == _DATA:
            receive = self._expect(frame)
            if receive is not None:
                if frame.nbytes:
                    _hand_over(receive.sink, payload, frame.offset)
                self._advance(receive, frame.nbytes)
        elif kind == _OFFER:
            self._offer(frame)
        else:
            raise WireError(f"a {Type(kind).name} frame from a sender")

    def place(self, frame: Frame, at: int) -> memoryview:
        if not at:
            self._arriving = self._expect(frame)
        receive = self._arriving
        if receive is not None and isinstance(receive.sink, Into):
            return receive.sink.view[frame.offset + at : frame.offset + frame.nbytes]
        return self._scratch_of(min(frame.nbytes - at, SEGMENT))

    def placed(self, frame: Frame, at: int, nbytes: int) -> None:
        receive = self._arriving
        if at + nbytes == frame.nbytes:
            self._arriving = None
        if receive is None:
            return
        if not isinstance(receive.sink, Into):
            receive.sink.fold(self._scratch_of(nbytes), frame.offset + at)
        self._advance(receive, nbytes)

    def writable(self) -> None:
        pass

    def ended(self, goodbye: bool, cause: str) -> None:
        self._forget()
        self._on_end(self.rank, goodbye, cause)

    # Inside.

    def _eager(self, frame: Frame, payload: memoryview) -> None:
        context = frame.context
        if context in self._retired:
            return
        key = Key(context, frame.stream, frame.seq, frame.part)
        if key in self._stored:
            raise WireError(f"a second message under {key}")
        self._arrived(self.rank, key, frame.signature, frame.nbytes)
        receive = self._posted.get(key)
        if receive is not None and receive.nbytes == frame.nbytes and not receive.ready:
            del self._posted[key]
            self._deliver(receive.sink, payload)
            self._credit(context, frame.nbytes)
            receive.done()
        elif context not in self._retired:
            kept = self._kept.get(context, 0) + frame.nbytes + HEADER
            if kept > self._budget:
                raise WireError(f"more than {self._budget} bytes were sent before they were asked for, {key}")
            self._kept[context] = kept
            self._stored[key] = _Stored(frame.nbytes, frame.signature, bytes(payload))

    def _offer(self, frame: Frame) -> None:
        if frame.context in self._retired:
            return
        key = Key(frame.context, frame.stream, frame.seq, frame.part)
        if key in self._stored:
            raise WireError(f"a second message under {key}")
        receive = self._posted.get(key)
        if receive is not None:
            receive.announced = True
        # Stored before anybody hears of it, because the observer may post the receive right there.
        self._stored[key] = _Stored(frame.total, frame.signature, None)
        self._arrived(self.rank, key, frame.signature, frame.total)
        receive = self._posted.get(key)
        if key in self._stored and receive is not None and receive.nbytes == frame.total:
            del self._stored[key]
            self._say_ready(receive)

    def _expect(self, frame: Frame) -> _Receive | None:
        """The receive that a DATA frame belongs to; None if it was cancelled.

        Raises:
            WireError: nobody asked for these bytes, or they are out of order.
        """
        key = Key(frame.context, frame.stream, frame.seq, frame.part)
        receive = self._posted.get(key)
        if receive is None or not receive.ready:
            if key.context in self._retired or key.context in self._cancelled:
                return None
            raise WireError(f"bytes of a message that was not asked for, {key}")
        stop = frame.offset + frame.nbytes
        if frame.total != receive.nbytes or frame.offset != receive.got:
            raise WireError(f"a segment out of place: {frame.offset} to {stop} of {frame.total} bytes, {key}")
        if stop != frame.total and frame.nbytes % 16:
            raise WireError(f"a segment of {frame.nbytes} bytes, which is no multiple of 16")
        if not receive.announced:
            receive.announced = True
            self._arrived(self.rank, key, frame.signature, frame.total)
            return self._posted.get(key)
        return receive

    def _advance(self, receive: _Receive, nbytes: int) -> None:
        """A segment, or a part of one, is in its sink."""
        if self._posted.get(receive.key) is not receive:
            return  # its own fold cancelled it
        receive.got += nbytes
        if receive.got == receive.nbytes:
            del self._posted[receive.key]
            receive.done()

    def _deliver(self, sink: Sink, payload: memoryview) -> None:
        if len(payload):
            _hand_over(sink, payload, 0)

    def _say_ready(self, receive: _Receive) -> None:
        if self.link is not None and not receive.ready:
            receive.ready = True
            self.link.post(pack(Type.READY, *receive.key, total=receive.nbytes))

    def _credit(self, context: int, nbytes: int) -> None:
        owed = self._owed.get(context, 0) + nbytes + HEADER
        if owed >= self._batch and self.link is not None:
            self.link.post(pack(Type.CREDIT, context, word=owed))
            owed = 0
        self._owed[context] = owed

    def _scratch_of(self, nbytes: int) -> memoryview:
        if self._scratch is None or len(self._scratch) < nbytes:
            self._scratch = memoryview(bytearray(max(nbytes, SEGMENT)))
        return self._scratch[:nbytes]

    def _forget(self) -> None:
        self.link = None
        self._posted.clear()
        self._arriving = None


def _hand_over(sink: Sink, payload: memoryview, offset: int) -> None:
    if isinstance(sink, Into):
        sink.view[offset : offset + len(payload)] = payload
    else:
        sink.fold(payload, offset)
