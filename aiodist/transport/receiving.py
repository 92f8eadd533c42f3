"""The receiving half of matching: stored eager messages, offers, posted receives, READY and credit.

READY is said once for a message: when a receive larger than EAGER_MESSAGE is posted, or when a posted
receive and an offer meet. From then on the bytes have a place: they go straight into the sink, or
through one scratch fragment into a `Fold`. What arrives for a receive that was cancelled meanwhile goes
to the same scratch and is forgotten.

A peer may name any number of messages and contexts. Of its offers so many are remembered (REMEMBERED); the
sender keeps the others, and is asked for each when its receive is posted: READY says then that the offer may
have been forgotten. Eager messages cannot be forgotten, so their bytes are counted, in each context and in
all, just as the sender counts them: one that sends more breaks the protocol.

Why it is this way
    Whoever is first says READY or OFFER, and nobody knows who will be. A large receive says READY ahead, so
    that a message that is sent later needs no offer, and half a round trip less. A small one does not: its
    message is most likely eager, and the READY would be for nothing. So a receive has three facts that change
    by themselves, and are no states of one machine: whether the observer knows of the message (`announced`),
    whether the sender may use its place (`ready`), whether two offers of it may come (`asked`).

    Credit goes back in batches, and not while the peer reads nothing: one that only sends could fill this
    process's memory with the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiodist.base.environment.tuning import EAGER_BUDGET
from aiodist.base.errors import Tampered, UsageError, WireError
from aiodist.base.recent import Recent
from aiodist.net.wire.frame import HEADER, MESSAGE_LIMIT, PAYLOAD_LIMIT, Frame, Type, Word, pack, parse_eager
from aiodist.transport.accounts import ReceiveAccount
from aiodist.transport.base import (
    EAGER_MESSAGE,
    EAGER_SHARES,
    FRAGMENT,
    REMEMBERED,
    Done,
    EagerHandler,
    Handled,
    Into,
    Key,
    Sink,
)
from aiodist.transport.link import Link, Message

_EAGER, _OFFER, _DATA = int(Type.EAGER), int(Type.OFFER), int(Type.DATA)
_NO, _NOW = int(Handled.NO), int(Handled.NOW)
_ANSWER, _AGAIN, _FORGOT = int(Word.ANSWER), int(Word.AGAIN), int(Word.FORGOT)

Arrived = Callable[[int, Key, bytes, int], None]


def _ignore(_rank: int) -> None:
    pass


@dataclass(slots=True, eq=False)
class _Receive:
    """A posted receive.

    Attributes:
        signature: of the message that is expected; b"": any.
        got: bytes that its sink has.
        announced: the observer knows of the message.
        ready: READY was said, so that the sender may have remembered it.
        asked: READY was said of a message whose offer may have been forgotten: it may be offered twice.
    """

    key: Key
    nbytes: int
    sink: Sink
    done: Done
    signature: bytes = b""
    got: int = 0
    announced: bool = False
    ready: bool = False
    asked: bool = False


@dataclass(slots=True, eq=False)
class _Stored:
    """A message that no receive was posted for: its bytes, or None where it is only offered."""

    nbytes: int
    signature: bytes
    data: bytes | None
    asked: bool


class Incoming(ReceiveAccount):
    """The receiving end of a channel, over whatever link it is given. It exists before the peer connects.
    Also the link's user.

    Args:
        rank: the peer.
        arrived: the observer's method, called as (rank, key, signature, nbytes).
        on_end: called as (rank, goodbye, cause) when the link ends by the peer or by accident.
        crowded: the observer's method, called as (rank).
        eager_budget: the sender's; a quarter of it is returned at a time, and no more is kept of a context.
            Likewise that of all contexts together, which is EAGER_SHARES times as much.
        retired: contexts that are dead; shared by the channels of an endpoint, of which there may be many.
        takers: of contexts; shared likewise.
    """

    def __init__(
        self,
        rank: int,
        arrived: Arrived,
        on_end: Callable[[int, bool, str | Tampered], None],
        *,
        crowded: Callable[[int], None] = _ignore,
        eager_budget: int = EAGER_BUDGET,
        retired: Recent | None = None,
        takers: Mapping[int, EagerHandler] | None = None,
    ) -> None:
        self.rank = rank
        self.link: Link | None = None
        self._arrived = arrived
        self._crowded = crowded
        self._on_end = on_end
        self._budget = eager_budget
        self.budgets = eager_budget * EAGER_SHARES
        self.batch = eager_budget // 4
        self._posted: dict[Key, _Receive] = {}
        self._stored: dict[Key, _Stored] = {}
        self._offers = 0  # of those, how many are only offered
        self._forgot = False  # an offer was not remembered
        self.questions: set[Key] = set()  # asked for, but no receive is posted yet
        self._kept: dict[int, int] = {}  # context → eager bytes that are stored, with their headers
        self.owed: dict[int, int] = {}  # context → credit not yet returned
        # Of all contexts: what the sender counts as spent, and what of it is stored no more.
        self.spent_all = 0
        self.owed_all = 0
        self._retired = Recent() if retired is None else retired
        self.takers = {} if takers is None else takers
        self._cancelled: set[int] = set()
        self._arriving: _Receive | None = None  # its fragment is being received piecemeal
        self._arriving_at = self._arriving_to = 0  # where in the message what `place` gave lies
        self._scratch: memoryview | None = None

    # Incoming.

    def recv(self, key: Key, nbytes: int, sink: Sink, done: Done, signature: bytes = b"") -> bool:
        """Post the receive of one message.

        Args:
            key: its name.
            nbytes: its size; a message of another size is not delivered (see `Observer.arrived`).
            sink: where the bytes go; borrowed until the receive is over.
            done: called once, later, if this returns False, unless the context is cancelled or the
                peer is lost first.
            signature: of the message that the caller expects. A small one that bears it is not told to the
                observer at all.

        Returns:
            True if the message was here already and is in the sink.

        Raises:
            UsageError: a receive is posted under this key.
        """
        if key[0] in self._retired or key[0] in self._cancelled:
            return False
        if key in self._posted:
            raise UsageError(f"a receive from rank {self.rank} is posted already under {key}")
        stored = self._stored.get(key)
        matches = stored is not None and stored.nbytes == nbytes
        if stored is not None and matches:
            self._unstore(key, stored)
            if stored.data is not None:
                self._deliver(sink, memoryview(stored.data))
                self._credit(key[0], nbytes)
                return True
        receive = self._posted[key] = _Receive(key, nbytes, sink, done, signature)
        if stored is not None:
            receive.announced = True
            receive.asked = stored.asked
            if matches:
                self._say_ready(receive, _ANSWER)
        elif nbytes > EAGER_MESSAGE or self._forgot:
            self._say_ahead(receive)
        return False

    def let_go(self, context: int, nbytes: int) -> None:
        """Note that a message which an `EagerHandler` kept was received."""
        if context not in self._retired:
            self._kept[context] = self._kept.get(context, 0) - nbytes - HEADER
            self._credit(context, nbytes)

    def withdraw(self, key: Key) -> bool:
        """Take back the receive of a message of which nothing is known here, nor at the peer of the receive
        → whether that could be. Its `done` is not called then, and its sink not touched any more."""
        receive = self._posted.get(key)
        if receive is None or receive.announced or receive.ready or receive.asked:
            return False
        del self._posted[key]
        return True

    def park(self, key: Key) -> bool:
        """Take back the receive of a message that has been announced, before its sender was asked for it: the
        message stays where it is until `post_again` → whether that could be."""
        receive = self._posted.get(key)
        if receive is None or receive.ready or receive.asked:
            return False
        del self._posted[key]
        return True

    def redirect(self, key: Key, into: Into, moves: bool) -> None:
        """Have the bytes of a message, of which some may be here, go into another sink of the same size.

        Args:
            moves: it is other memory: what has come is copied there, and the old memory is touched no more.
        """
        receive = self._posted.get(key)
        if receive is None:
            return
        old, come = receive.sink, receive.got
        receive.sink = into
        receive.signature = b""  # it may go to another receive: the caller has to compare
        if self._arriving is receive and self.link is not None:
            self.link.divert(into.view[self._arriving_at :])
            come = self._arriving_to  # of the fragment that arrives some bytes are here, and not counted
        if moves and isinstance(old, Into):
            into.view[:come] = old.view[:come]

    def post_again(self, key: Key, nbytes: int, sink: Sink, done: Done, signature: bytes = b"") -> bool:
        """Post the receive of a message as one of another size, instead of one that may be posted. No byte of
        it has come yet. Otherwise like `recv`."""
        self._posted.pop(key, None)
        return self.recv(key, nbytes, sink, done, signature)

    def ask(self, key: Key) -> None:
        """Ask for a message of any size, for which no receive can be posted before it arrives. Only needed
        once the observer was told that the peer's offers are `crowded`; may be repeated."""
        if self._forgot and key not in self.questions and key not in self._stored:
            self.questions.add(key)
            if self.link is not None:  # no message is so large: it does not fit, and is offered
                self.link.post(pack(Type.READY, *key, total=MESSAGE_LIMIT, word=_ANSWER | _AGAIN))

    def poll(self) -> None:
        """Take what the socket has, in this turn of the loop; see `Outgoing.poll`."""
        if self.link is not None:
            self.link.poll()

    def cancel(self, context: int) -> None:
        """Forget all posted receives of a context, for good; what still arrives for them is dropped.

        Sinks are untouched after this returns, `done` is not called. Receives posted in it later are ignored
        (False, never done).
        """
        self._cancelled.add(context)
        for key in [key for key in self._posted if key.context == context]:
            del self._posted[key]
        self.questions = {key for key in self.questions if key.context != context}
        arriving = self._arriving
        if arriving is not None and arriving.key.context == context:
            self._arriving = None
            if self.link is not None and isinstance(arriving.sink, Into):
                self.link.divert(self._scratch_of(PAYLOAD_LIMIT))

    def retire(self, context: int) -> None:
        """Cancel a context that is dead for good: all that was stored for it is freed, all that still
        comes is dropped unreported, and receives posted in it are ignored (False, never done)."""
        self._retired.add(context)
        self.cancel(context)
        self._cancelled.discard(context)
        self.owed.pop(context, None)
        self.owed_all += self._kept.pop(context, 0)
        for key in [key for key in self._stored if key.context == context]:
            self._offers -= self._stored.pop(key).data is None
        self.return_credit(0)

    def pending(self, context: int, stream: int) -> list[tuple[int, int, bytes]]:
        """The messages that arrived or were offered in a stream, are remembered, and match no posted receive,
        as (seq, nbytes, signature), in order of seq (messages of `part` 0 only)."""
        return sorted(
            (key.seq, stored.nbytes, stored.signature)
            for key, stored in self._stored.items()
            if key.context == context and key.stream == stream and key.part == 0 and key not in self._posted
        )

    # The owner's side.

    def attach(self, link: Link) -> None:
        """Take the peer's link, and say READY for what was posted before. Called from the loop."""
        self.link = link
        link.start(self)
        for receive in self._posted.values():
            if not receive.announced:
                self._say_ahead(receive)

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
            key = Key(frame.context, frame.stream, frame.seq, frame.part)
            self._eager(key, frame.signature, payload)
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

    def eager(self, record: memoryview) -> int:
        context, stream, seq, part, nbytes, signature = parse_eager(record)
        self._eager(Key(context, stream, seq, part), signature, record[HEADER : HEADER + nbytes])
        return nbytes

    def place(self, frame: Frame, at: int) -> memoryview:
        if not at:
            self._arriving = self._expect(frame)
        receive = self._arriving
        self._arriving_at, self._arriving_to = frame.offset + at, frame.offset + frame.nbytes
        if receive is not None and isinstance(receive.sink, Into):
            return receive.sink.view[frame.offset + at : frame.offset + frame.nbytes]
        return self._scratch_of(min(frame.nbytes - at, FRAGMENT))

    def placed(self, frame: Frame, at: int, nbytes: int) -> None:
        receive = self._arriving
        if at + nbytes == frame.nbytes:
            self._arriving = None
        if receive is None:
            return
        if not isinstance(receive.sink, Into):
            receive.sink.fold(self._scratch_of(nbytes), frame.offset + at)
        self._advance(receive, nbytes)

    def returned(self, message: Message) -> None:
        raise AssertionError

    def writable(self) -> None:
        for context in list(self.owed):  # the peer reads again
            self.return_credit(context)
        self.return_credit(0)

    def ended(self, goodbye: bool, cause: str | Tampered) -> None:
        self._forget()
        self._on_end(self.rank, goodbye, cause)

    # Inside.

    def _eager(self, key: Key, signature: bytes, payload: memoryview) -> None:
        context, nbytes = key[0], len(payload)
        if nbytes > EAGER_MESSAGE:
            raise WireError(f"an EAGER frame of {nbytes} bytes")
        self.spent_all += nbytes + HEADER
        if self.spent_all > self.budgets:
            raise WireError(f"more than {self.budgets} bytes were sent before they were asked for")
        if context in self._retired:
            self.owed_all += nbytes + HEADER
            self.return_credit(0)
            return
        if key[1] and not key[3] and (taker := self.takers.get(context)) is not None:
            taken = taker(self.rank, key[1], key[2], signature, payload)
            if taken != _NO:
                self.questions.discard(key)
                if taken == _NOW:
                    self._credit(context, nbytes)
                else:
                    self._keep(context, nbytes)
                return
        receive = self._posted.get(key)
        if key in self._stored or (receive is not None and receive.announced):
            raise WireError(f"a second message under {key}")
        if receive is None or receive.signature != signature:
            self.questions.discard(key)
            self._arrived(self.rank, key, signature, nbytes)
            receive = self._posted.get(key)
        if receive is not None and receive.nbytes == nbytes:
            del self._posted[key]
            self._deliver(receive.sink, payload)
            self._credit(context, nbytes)
            receive.done()
        elif self._keep(context, nbytes):
            self._store(key, _Stored(nbytes, signature, bytes(payload), False), receive)

    def _keep(self, context: int, nbytes: int) -> bool:
        """Count an eager message that stays here → False where its context has just been retired."""
        if context in self._retired:
            self.owed_all += nbytes + HEADER
            self.return_credit(0)
            return False
        kept = self._kept.get(context, 0) + nbytes + HEADER
        if kept > self._budget:
            raise WireError(f"more than {self._budget} bytes were sent before they were asked for")
        self._kept[context] = kept
        return True

    def _offer(self, frame: Frame) -> None:
        if frame.context in self._retired:
            return
        key = Key(frame.context, frame.stream, frame.seq, frame.part)
        receive = self._posted.get(key)
        stored = self._stored.get(key)
        if stored is not None or (receive is not None and receive.announced):
            if (stored is not None and stored.asked) or (receive is not None and receive.asked):
                return  # the first was under way when we asked for it
            raise WireError(f"a second message under {key}")
        asked = receive.asked if receive is not None else self._is_answer(key)
        if receive is None and not asked and self._offers >= REMEMBERED:
            return  # it stays with the sender
        # Stored before anybody hears of it, because the observer may post the receive right there.
        self._store(key, _Stored(frame.total, frame.signature, None, asked), receive)
        self._arrived(self.rank, key, frame.signature, frame.total)
        stored, receive = self._stored.get(key), self._posted.get(key)
        if stored is not None and receive is not None and receive.nbytes == frame.total:
            self._unstore(key, stored)
            if not receive.ready or frame.word & _FORGOT:
                self._say_ready(receive, _ANSWER)

    def _is_answer(self, key: Key) -> bool:
        """Whether an offer was asked for. The first that is too many makes those who wait ask."""
        if self._offers >= REMEMBERED and not self._forgot:
            self._forgot = True
            self._crowded(self.rank)
        if key in self.questions:
            self.questions.discard(key)
            return True
        return False

    def _store(self, key: Key, stored: _Stored, receive: _Receive | None) -> None:
        if receive is not None:
            receive.announced = True
        self._stored[key] = stored
        self._offers += stored.data is None

    def _unstore(self, key: Key, stored: _Stored) -> None:
        del self._stored[key]
        if stored.data is None:
            self._offers -= 1
        else:
            self._kept[key[0]] -= stored.nbytes + HEADER

    def _expect(self, frame: Frame) -> _Receive | None:
        """The receive that a DATA frame belongs to; None if it was cancelled.

        Raises:
            WireError: nobody asked for these bytes, or they are out of order.
        """
        key = Key(frame.context, frame.stream, frame.seq, frame.part)
        receive = self._posted.get(key)
        if receive is None or not (receive.ready or receive.asked):
            if key.context in self._retired or key.context in self._cancelled:
                return None
            raise WireError(f"bytes of a message that was not asked for, {key}")
        stop = frame.offset + frame.nbytes
        if frame.total != receive.nbytes or frame.offset != receive.got:
            raise WireError(
                f"a fragment out of place: {frame.offset} to {stop} of {frame.total} bytes, {key}"
            )
        if stop != frame.total and frame.nbytes % 16:
            raise WireError(f"a fragment of {frame.nbytes} bytes, which is not a multiple of 16")
        if not receive.announced:
            receive.announced = True
            self._arrived(self.rank, key, frame.signature, frame.total)
            return self._posted.get(key)
        return receive

    def _advance(self, receive: _Receive, nbytes: int) -> None:
        """Count a fragment, or a part of one, that is in its sink."""
        if self._posted.get(receive.key) is not receive:
            return  # its own fold cancelled it
        receive.got += nbytes
        if receive.got == receive.nbytes:
            del self._posted[receive.key]
            receive.done()

    def _deliver(self, sink: Sink, payload: memoryview) -> None:
        if len(payload):
            _hand_over(sink, payload, 0)

    def _say_ahead(self, receive: _Receive) -> None:
        """Say that there is a place for a message that is not known yet, or whose offer was forgotten."""
        again = _AGAIN if self._forgot else 0
        if again:
            self.questions.discard(receive.key)
        if receive.nbytes > EAGER_MESSAGE:
            self._say_ready(receive, again)
        elif again and self.link is not None:  # if it was not offered, it is on its way, or will be
            self.link.post(pack(Type.READY, *receive.key, total=receive.nbytes, word=again | _ANSWER))
        receive.asked = bool(again)

    def _say_ready(self, receive: _Receive, word: int) -> None:
        if self.link is not None:
            receive.ready = True
            self.link.post(pack(Type.READY, *receive.key, total=receive.nbytes, word=word))

    def _credit(self, context: int, nbytes: int) -> None:
        """Count the credit of an eager message that is stored no more."""
        size = nbytes + HEADER
        owed = self.owed[context] = self.owed.get(context, 0) + size
        self.owed_all += size
        if owed >= self.batch or self.owed_all * 4 >= self.budgets:
            self.return_credit(context)

    def return_credit(self, context: int) -> None:
        """Return the credit of a context, or that of all of them together, once it is much. It waits while
        the peer reads nothing, which would otherwise fill our memory with it."""
        owed = self.owed.get(context, 0)
        much = (owed and owed >= self.batch) or self.owed_all * 4 >= self.budgets
        if much and self.owed_all + owed and self.link is not None and self.link.idle:
            self.link.post(pack(Type.CREDIT, context, total=self.owed_all, word=owed))
            self.spent_all -= self.owed_all
            self.owed_all = 0
            if owed:
                self.owed[context] = 0

    def _scratch_of(self, nbytes: int) -> memoryview:
        if self._scratch is None or len(self._scratch) < nbytes:
            self._scratch = memoryview(bytearray(max(nbytes, FRAGMENT)))
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
