"""The sending half of matching: eager within a budget, otherwise OFFER, READY, DATA.

A message of at most EAGER_MESSAGE bytes goes at once while its context has budget; its bytes are then
copied by the connection, so that `send` is over when it returns. Any other message is offered, unless
the peer's READY is here already, and its fragments follow when READY comes. Fragments of several ready
messages take turns, so that a long one does not hold up the others.

What a peer says is remembered within bounds, whatever it says: of the READYs that come before their
messages so many, of its credit as much as was spent. Neither side ever refuses the other for operations
that are many: what was forgotten is said again (`frame.Word`).

Why it is this way
    A window of bytes per connection, as TCP and HTTP/2 have it, would deadlock here. Messages are matched by
    name, not by order: a window that is full of messages whose receives come later keeps back the very one
    that its receiver waits for. So a byte beyond the small eager budget travels only when its receive is
    posted (the rendezvous protocol of MPI libraries). The eager budget is per context, so that a group that
    stalls leaves the others theirs, and there is one for all contexts, because a peer may invent contexts.

    OFFER is not sent at once, but before the loop sleeps (`Link.later`). Where all ranks issue the same, the
    READY of a message mostly crosses its offer: what lies in the socket is read first, and most offers are
    never sent.

    A message has no state of its own but where it stands; it goes through these from the left to the right:

        _backlog ──attach──▶ _offered ──READY──▶ _active ──last fragment──▶ done
                               └ offers: not told yet       ├ _leaving: the link still borrows it
                                                             └ lent: the peer has yet to read some of it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aiodist.base.environment.tuning import EAGER_BUDGET
from aiodist.base.errors import Tampered, WireError
from aiodist.base.recent import Recent
from aiodist.net.wire.frame import HEADER, Frame, Type, Word, pack
from aiodist.transport.accounts import SendAccount
from aiodist.transport.base import EAGER_MESSAGE, EAGER_SHARES, FRAGMENT, REMEMBERED, Done, Key
from aiodist.transport.link import Handed, Link, Message

_CREDIT, _READY = int(Type.CREDIT), int(Type.READY)
_TAKEN, _LENT = int(Handed.TAKEN), int(Handed.LENT)
_ANSWER, _AGAIN, _FORGOT = int(Word.ANSWER), int(Word.AGAIN), int(Word.FORGOT)


class Outgoing(SendAccount):
    """The sending end of a channel, over whatever link it is given. Also the link's user.

    Args:
        rank: the peer.
        dial: called as (rank) to ask for a link, when there is something to send; `attach` answers it.
        on_end: called as (rank, goodbye, cause) when the link ends by the peer or by accident.
        eager_budget: bytes per context; 0 makes every send wait for its receive.
        retired: contexts that are dead; shared by the channels of an endpoint, of which there may be many.

    Attributes:
        over: it can send nothing any more.
        on_closed: called once when this end is over, as `close` has it; None before.
    """

    def __init__(
        self,
        rank: int,
        dial: Callable[[int], None],
        on_end: Callable[[int, bool, str | Tampered], None],
        *,
        eager_budget: int = EAGER_BUDGET,
        retired: Recent | None = None,
    ) -> None:
        self.rank = rank
        self.link: Link | None = None
        self.on_closed: Callable[[], None] | None = None
        self._dial = dial
        self._on_end = on_end
        self.budget = eager_budget
        self.budgets = eager_budget * EAGER_SHARES
        self.spent: dict[int, int] = {}  # context → eager bytes that were not matched yet
        self.spent_all = 0  # of all contexts: bytes that the peer holds, or has not said to have let go
        self._backlog: list[Message] = []  # sent before there was a link
        self._offered: dict[Key, Message] = {}
        self.offers: list[Key] = []  # of those, what the peer has not been told yet
        self._ready: dict[Key, int] = {}  # READY came before the send → bytes that are expected
        self._forgot = False  # one that came before its send was not remembered
        self._active: deque[Message] = deque()
        self._leaving: Message | None = None  # the link still borrows its last fragment given
        self._lent = 0  # fragments that the peer has yet to read where they lie
        self._retired = Recent() if retired is None else retired
        self._cancelled: set[int] = set()  # until they are retired
        self._shut: set[int] = set()  # those, and contexts of which the peer takes nothing more
        self._pumping = False
        self.closing = False
        self.over = False

    # Outgoing.

    def send(self, key: Key, signature: bytes, data: memoryview, done: Done, sealed: bool = False) -> bool:
        """Start sending one message.

        Args:
            key: its name; used once in a context's life.
            signature: 32 bytes that the peer's observer is shown.
            data: contiguous bytes (format 'B'), possibly none; borrowed until the send is over. Over
                means that the buffer may be reused, not that the peer has the message.
            done: called once, later, if this returns False, unless the context is cancelled or the
                peer is lost first.
            sealed: the bytes will be interpreted (objects): without TLS they have to be
                authenticated, which those of tensors are not.

        Returns:
            True if the buffer is free again already.
        """
        context = key[0]
        if self.over or self.closing or context in self._shut or context in self._retired:
            return False
        if self.link is None:
            self._backlog.append(Message(key, signature, data, done, sealed))
            self._dial(self.rank)
            return False
        return self._start(self.link, key, signature, data, done, sealed)

    def takes(self, context: int, nbytes: int) -> bool:
        """Whether a message of so many bytes, at most EAGER_MESSAGE, would leave inside `send`."""
        size = nbytes + HEADER
        return not (
            self.link is None
            or self.over
            or self.closing
            or self.spent.get(context, 0) + size > self.budget
            or self.spent_all + size > self.budgets
            or context in self._shut
            or context in self._retired
        )

    def send_eager(self, header: bytes, context: int, payload: memoryview, sealed: bool = False) -> None:
        """Send an eager message that `takes` has just allowed.

        Args:
            header: of its EAGER frame.
            payload: its bytes, one at least; the buffer is free again when this returns.
        """
        link, size = self.link, len(payload) + HEADER
        assert link is not None
        self.spent[context] = self.spent.get(context, 0) + size
        self.spent_all += size
        if self.offers:
            self._announce()  # what came first is heard of first
        link.post(header, payload, sealed)

    def poll(self) -> None:
        """Move now what can be moved, as the loop would later; callbacks are called from in here. For a
        caller that could only wait."""
        if self.link is not None:
            self.link.poll()

    def cancel(self, context: int) -> None:
        """Forget all sends of a context, for good: sends made in it later are ignored (False, never done).

        The channel stays usable for other contexts. The peer is told nothing: its receives stay
        pending until it cancels them itself.
        """
        self._cancelled.add(context)
        self.shut(context)
        self.spent.pop(context, None)
        self._active = deque(message for message in self._active if message.key.context != context)
        for key in [key for key in self._ready if key.context == context]:
            del self._ready[key]
        if self._lent and self.link is not None:
            self.link.withdraw(context)
        if self._leaving is not None and self._leaving.key.context == context:
            self._leaving = None
            if self.link is not None:
                self.link.keep()
        self._close_if_idle()

    def shut(self, context: int) -> list[Key]:
        """Forget the sends of a context that the peer has not asked for, and ignore later ones: it takes
        nothing more of that context. What it has asked for goes on.

        Returns:
            the forgotten messages' names. Their `done` is not called, and their buffers are free.
        """
        self._shut.add(context)
        waiting = [message.key for message in self._backlog if message.key.context == context]
        self._backlog = [message for message in self._backlog if message.key.context != context]
        offered = [key for key in self._offered if key.context == context]
        for key in offered:
            del self._offered[key]
        return waiting + offered

    def retire(self, context: int) -> None:
        """Cancel a context that is dead for good on all channels of the endpoint."""
        self._retired.add(context)
        self.cancel(context)
        self._cancelled.discard(context)
        self._shut.discard(context)

    def close(self, on_closed: Callable[[], None]) -> None:
        """Close gracefully: what was begun is sent, then goodbye. Further sends are ignored. `on_closed` is
        called once the peer has answered, or this end is over otherwise."""
        if self.over:
            on_closed()
            return
        self.on_closed = on_closed
        self.closing = True
        self._offered.clear()
        self._ready.clear()
        self._close_if_idle()

    def kill(self) -> None:
        """Close at once, without goodbye; no `done` is called any more."""
        link = self.link
        self._forget()
        if link is not None:
            link.kill()

    # The owner's side.

    def attach(self, link: Link) -> None:
        """Take a link, and send what waited for it. Called from the loop."""
        if self.over:
            link.kill()
            return
        self.link = link
        link.start(self)
        backlog, self._backlog = self._backlog, []
        for message in backlog:
            # A `done` may cancel or kill meanwhile.
            if self.over or self._dead(message.key.context):
                continue
            if self._start(link, message.key, message.signature, message.data, message.done, message.sealed):
                message.done()
        self._close_if_idle()

    # LinkUser.

    def received(self, frame: Frame, payload: memoryview) -> None:
        kind, context = frame.type, frame.context
        if kind == _CREDIT:
            self.spent_all = max(0, self.spent_all - frame.total)
            spent = self.spent.get(context, 0) - frame.word
            if spent > 0:
                self.spent[context] = spent
            else:
                self.spent.pop(context, None)
        elif kind == _READY:
            if not self.closing and not self._dead(context):
                self._place_is_ready(Key(context, frame.stream, frame.seq, frame.part), frame)
        else:
            raise WireError(f"a {Type(kind).name} frame from a receiver")

    def _place_is_ready(self, key: Key, frame: Frame) -> None:
        message = self._offered.get(key)
        if message is None:
            if frame.word & _ANSWER:
                pass  # to an offer: what it is about is under way, or was cancelled
            elif len(self._ready) < REMEMBERED:
                self._ready[key] = frame.total
            else:
                self._forgot = True
        elif len(message.data) == frame.total:
            del self._offered[key]
            self._active.append(message)
            self._pump()
        elif frame.word & _AGAIN and message.offered and self.link is not None:
            # The peer sees by our offer that sizes differ. Both sides wait until somebody cancels.
            self._tell(self.link, message)

    def eager(self, record: memoryview) -> int:
        raise WireError("an EAGER frame from a receiver")

    def place(self, frame: Frame, at: int) -> memoryview:
        raise WireError("a DATA frame from a receiver")

    def placed(self, frame: Frame, at: int, nbytes: int) -> None:
        raise AssertionError

    def writable(self) -> None:
        message, self._leaving = self._leaving, None
        if message is not None and message.sent == len(message.data) and not message.lent:
            message.done()
        self._pump()

    def returned(self, message: Message) -> None:
        self._lent -= 1
        message.lent -= 1
        borrowed = message.lent or message is self._leaving or message.sent < len(message.data)
        if not borrowed and not self._dead(message.key.context):
            message.done()
        self._close_if_idle()

    def ended(self, goodbye: bool, cause: str | Tampered) -> None:
        self._forget()
        self._on_end(self.rank, goodbye, cause)

    # Inside.

    def _dead(self, context: int) -> bool:
        return context in self._cancelled or context in self._retired

    def _start(
        self, link: Link, key: Key, signature: bytes, data: memoryview, done: Done, sealed: bool
    ) -> bool:
        nbytes = len(data)
        if nbytes <= EAGER_MESSAGE:
            context = key[0]
            spent = self.spent.get(context, 0) + nbytes + HEADER
            spent_all = self.spent_all + nbytes + HEADER
            if spent <= self.budget and spent_all <= self.budgets:
                self.spent[context] = spent
                self.spent_all = spent_all
                if self.offers:
                    self._announce()  # what came first is heard of first
                header = pack(Type.EAGER, *key, nbytes=nbytes, total=nbytes, signature=signature)
                link.post(header, data if nbytes else None, sealed)
                return True
        return self._begin(link, Message(key, signature, data, done, sealed))

    def _begin(self, link: Link, message: Message) -> bool:
        """Have a message offered, or send it right away where READY is here; True if all of it left."""
        key = message.key
        if self._ready.pop(key, None) != len(message.data):
            self._offered[key] = message
            self.offers.append(key)
            if len(self.offers) == 1:
                link.later(self._offer)
            return False
        if self._active or self._pumping or not link.room:
            self._active.append(message)
            return False
        # Nothing else is under way, so no other message's `done` can become due in here.
        over = self._write_out(link, message)
        if message.sent < len(message.data):
            self._active.append(message)
        return over

    def _offer(self) -> None:
        """Offer what the peer has not asked for meanwhile: where all issue the same it mostly has, and its
        READY lies in the socket, unread."""
        if self.link is not None and self.offers:
            self.link.poll()
            self._announce()

    def _announce(self) -> None:
        keys, self.offers = self.offers, []
        for key in keys:
            message = self._offered.get(key)
            if message is not None and self.link is not None:
                message.offered = True
                self._tell(self.link, message)

    def _tell(self, link: Link, message: Message) -> None:
        word = _FORGOT if self._forgot else 0
        link.post(
            pack(Type.OFFER, *message.key, total=len(message.data), word=word, signature=message.signature)
        )

    def _write_out(self, link: Link, message: Message) -> bool:
        """Fragments of one message as long as there is room; True if the last has left."""
        while link.room:
            if self._write(link, message):
                return True
            if message.sent == len(message.data):
                break
        return False

    def _write(self, link: Link, message: Message) -> bool:
        """Give the next fragment to the link; True if that was the last and nothing of it is borrowed."""
        start, size = message.sent, len(message.data)
        piece = link.piece(message)
        # What is authenticated is gone through on the loop: in pieces that do not hold it.
        stop = message.sent = min(start + (min(piece, FRAGMENT) if message.sealed else piece), size)
        handed = link.write(message, start, stop)
        if handed == _TAKEN:
            return stop == size and not message.lent
        if handed == _LENT:
            self._lent += 1
            message.lent += 1
        else:
            self._leaving = message
        return False

    def _pump(self) -> None:
        """Write fragments of ready messages in turn, as long as the link has room."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._active and (link := self.link) is not None and link.room:
                message = self._active.popleft()
                over = self._write(link, message)
                if message.sent < len(message.data):
                    self._active.append(message)
                if over:
                    message.done()
        finally:
            self._pumping = False
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        busy = self._active or self._backlog or self._lent or self._leaving is not None
        if not self.closing or self.over or busy:
            return
        link = self.link
        if link is not None:
            link.on_closed, self.on_closed = self.on_closed, None
        self._forget()
        if link is not None:
            link.close()

    def _forget(self) -> None:
        self.over = True
        self.link = None
        self._leaving = None
        self._backlog.clear()
        self._offered.clear()
        self._ready.clear()
        self._active.clear()
        self._lent = 0
        self.spent.clear()
        on_closed, self.on_closed = self.on_closed, None
        if on_closed is not None:
            on_closed()
