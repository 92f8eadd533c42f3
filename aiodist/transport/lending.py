"""Fragments that are lent: the receiver reads them where they lie in the sender's memory (`shm.remote`).

That is one copy, by the kernel, instead of two through a shared segment. Lends are read in the order in which
they were made, so a count says which have been returned. For each there is a word in the lender's area of the
rings, lend n in word n mod 8:

    n + 1      it stands
    another    it was withdrawn

The lender's memory is its user's, who may write there as soon as his operation has failed. So whoever
withdraws changes the word first, and a fence follows. Whoever reads looks at the word again when he has read,
behind a fence: if it stands, what was read is older than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aiodist.base.errors import WireError
from aiodist.net.wire.frame import PAYLOAD_LIMIT, Frame
from aiodist.transport.link import LinkUser, Message
from aiodist.transport.shm.remote import Own, Remote, address_of
from aiodist.transport.shm.ring import WORDS

LEND = 128 * 1024
"""Bytes from which on a fragment is lent: what a call to the system costs is little then."""


class Lender:
    """The sending end.

    Args:
        words: of this process's area.
        fence: the engine's: what comes before it is done before what comes after.
    """

    def __init__(self, words: memoryview, fence: Callable[[], None]) -> None:
        self._words = words
        self._own = Own()
        self._out: deque[Message] = deque()  # in order
        self._made = 0
        self._fence = fence

    @property
    def full(self) -> bool:
        """Whether no more can be lent now."""
        return len(self._out) == WORDS

    def piece(self, message: Message) -> int:
        """Bytes of the next fragment of a message that could be lent; 0: none."""
        start = message.sent
        rest = len(message.data) - start
        if rest < LEND or self.full:
            return 0
        if not message.address:
            message.address = address_of(message.data)
        piece = min(rest, PAYLOAD_LIMIT)
        return piece if self._own.readable(message.address + start, piece) else 0

    def lend(self, message: Message) -> None:
        """Lend a fragment. Its frame is posted afterwards."""
        self._words[self._made % WORDS] = self._made + 1
        self._made += 1
        self._out.append(message)

    def returned(self, count: int) -> list[Message]:
        """The messages of the fragments that are lent no more, now that `count` were returned in all.

        Raises:
            WireError: so many cannot have been.
        """
        back = count - (self._made - len(self._out))
        if not 0 < back <= len(self._out):
            raise WireError(f"{count} fragments returned, of {self._made} that were lent")
        return [self._out.popleft() for _ in range(back)]

    def withdraw(self, ends: Callable[[Message], bool]) -> None:
        """Withdraw what is lent of some messages: see the module."""
        first = self._made - len(self._out)
        for number, message in enumerate(self._out, first):
            if ends(message):
                self._words[number % WORDS] = 0
        self._fence()


class Borrower:
    """The receiving end.

    Args:
        remote: the sender's memory.
        words: of its area.
        fence: as for `Lender`.

    Attributes:
        done: fragments that were read, or passed over.
    """

    def __init__(self, remote: Remote, words: memoryview, fence: Callable[[], None]) -> None:
        self.done = 0
        self._remote = remote
        self._words = words
        self._fence = fence

    def take(self, frame: Frame, user: LinkUser | None, guard: Callable[..., None]) -> bool:
        """Read a fragment to where its user wants it, unless it was withdrawn, or there is no user → False
        where it stands, and cannot be read.

        Args:
            guard: calls the user, and keeps what its own code raises.
        """
        number, words = self.done, self._words
        self.done += 1
        at, word = 0, number % WORDS
        while user is not None and at < frame.nbytes and words[word] == number + 1:
            place = user.place(frame, at)[: frame.nbytes - at]
            read = self._remote.read(place, frame.word + at)
            self._fence()
            if words[word] != number + 1:
                break
            if not read:
                return False
            guard(user.placed, frame, at, len(place))
            at += len(place)
        return True
