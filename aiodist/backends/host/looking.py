"""A receive that looks for its message before it is posted.

Where a message is small, and its receive awaited when it comes, nothing has to remember either: the awaiting
task looks into the ring of the sender, and where the next frame there is its message, it takes it. So most of
a round trip between two local processes needs no matching at all. Such a receive is posted like any other as
soon as the next frame is another one, another receive is posted, its await stops polling, or the loop turns
and nobody awaits it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aiodist.backends.base import Array, Operation, complete, contents, flat
from aiodist.backends.host.claims import Claim
from aiodist.backends.host.driving import Poller
from aiodist.backends.host.messages import Messages
from aiodist.transport import EAGER_MESSAGE, Incoming
from aiodist.types import message_signature
from aiodist.wire.frame import HEADER, NBYTES_AT, Type, pack
from aiodist.work import POLL_TURNS, Work

_BYTE = np.dtype(np.uint8)
_EAGER = int(Type.EAGER)


class Looking:
    """One receive, from one source, that is not posted yet. The driver of its Work (`work.Driver`).

    Args:
        messages, poller, channel: of the group, of the process, and from the source.
        context: of the group.
        source, tag, number: of the message, the next of that source and tag.
        header: of its EAGER frame; where its size is not known, of one without bytes.
        work: the user's handle.
        target: where it goes, contiguous; None: into memory of its own.
        convert: makes what the Work gives of (source, memory of its own).
        operation: makes the operation that is posted in its place, and `post` posts that.
    """

    __slots__ = (
        *("_channel", "_context", "_convert", "_header", "_make", "_messages", "_number", "_operation"),
        *("_place", "_poller", "_polls", "_post", "_source", "_tag", "_target", "_work"),
    )

    def __init__(
        self,
        messages: Messages,
        poller: Poller,
        channel: Incoming,
        context: int,
        source: int,
        tag: int,
        number: int,
        header: bytes,
        work: Work[Any],
        target: Array | None,
        convert: Callable[[Any], Any] | None,
        operation: Callable[[], Operation],
        post: Callable[[Operation], None],
    ) -> None:
        self._messages = messages
        self._poller = poller
        self._channel = channel
        self._context = context
        self._source = source
        self._tag = tag
        self._number = number
        self._header = header
        self._work = work
        self._target = target
        self._convert = convert
        self._make = operation
        self._post = post
        self._polls = 0  # in so many turns of the loop
        self._place: Array | None = None  # what it has received
        self._operation: Operation | None = None  # once it is posted
        work._driven_by(self)
        work._taken_back_by(self._take_back)
        messages.look_first(self._post_it)

    def poll(self) -> None:
        """Look for the message, for as long as this turn of the loop may."""
        self._polls += 1
        self._channel.awake()
        goes_on = self._poller.until(self._look)
        if self._work._driver is self and (self._polls > POLL_TURNS or not goes_on):
            self._messages.settle()
        driver = self._work._driver
        if driver is not None and driver is not self:
            driver.poll()

    @property
    def polled(self) -> bool:
        """Whether an await polls, and will in the next turn."""
        return self._polls > 0 and self._work._driver is self

    def _look(self) -> bool:
        """Look once → whether it is over, or posted."""
        messages = self._messages
        if self._operation is None and messages.quiet(self._tag):
            record = self._channel.peek()
            if record is None:
                return False
            if self._take(record):
                return True
        messages.settle()
        return True

    def _take(self, record: memoryview) -> bool:
        """Take the message, if it is the next frame."""
        place = self._target
        if place is not None:
            nbytes = place.nbytes
            header = self._header
        else:
            if bytes(record[:NBYTES_AT]) != self._header[:NBYTES_AT]:
                return False
            nbytes = int.from_bytes(record[NBYTES_AT : NBYTES_AT + 4], "little")
            if not 0 < nbytes <= EAGER_MESSAGE:
                return False
            key = self._context, 1 + self._tag, self._number, 0
            signature = message_signature(_BYTE, nbytes, self._number)
            header = pack(_EAGER, *key, nbytes=nbytes, total=nbytes, signature=signature)
        if len(record) < HEADER + nbytes or bytes(record[:HEADER]) != header:
            return False
        if place is None:
            place = np.empty(nbytes, np.uint8)
        into = contents(place)
        into[:] = record[HEADER : HEADER + nbytes]
        self._place = place
        self._messages.found(self._source, self._tag)
        self._channel.took(self._context, nbytes)
        result = self._source if self._convert is None else (self._source, place)
        complete(self._work, result, self._convert)
        return True

    def _post_it(self) -> None:
        self._work._driven_by(None)
        self._operation = self._make()
        self._post(self._operation)

    def _take_back(self) -> None:
        """Take it back: the await of it was cancelled."""
        if self._operation is not None:
            self._messages.given_up(self._operation)
        elif self._place is None:
            self._messages.forsake()
        else:
            users = self._target is not None
            hand_back(self._messages, self._source, self._tag, self._number, self._place, users)


def hand_back(messages: Messages, source: int, tag: int, number: int, place: Array, users: bool) -> None:
    """Keep a message for the next receive: the await that had it was cancelled in that turn of the loop.

    Args:
        users: `place` is the tensor of that receive.
    """
    place = flat(place)
    signature = message_signature(place.dtype, place.size, number)
    messages.hand_back(Claim(source, tag, number, None, place, users, None, signature, complete=True))
