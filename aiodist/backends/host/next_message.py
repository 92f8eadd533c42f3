"""A receive of the next small message, which has matched none yet.

It waits for the next message of its source and tag, and gets it whole when it comes. As long as it is the
only one with its tag that does, nothing has to be remembered of it but itself: no match, no place in the
channel, no entry in flight. So most messages of services and of round trips cost a look at a table. As soon
as anything else happens to its tag it is posted as any other receive (`messages.Messages.post_waiting`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aiodist.backends.base import Array, Operation, complete, contents, flat
from aiodist.backends.host.driving import Poller
from aiodist.backends.host.matches import Match
from aiodist.backends.work import Work
from aiodist.base.types import message_signature
from aiodist.transport import Incoming

_BYTE = np.dtype(np.uint8)


class NextMessage:
    """The receive. The driver of its Work, where it has a source (`work.Driver`).

    Args:
        work: the user's handle.
        source: group rank of the sender; -1: any.
        tag: of the message.
        target: where it goes, contiguous; None: into memory of its own.
        convert: makes the Work's result of (sender, bytes), where there is no target.
        post: posts it like any other.

    Attributes:
        poller, channel: what an await of it polls by, and its source's channel.
        operation: once it is posted.
        got: who sent the message that it has; -1: nobody yet.
    """

    __slots__ = (
        *(
            "_into",
            "_number",
            "_place",
            "channel",
            "convert",
            "got",
            "operation",
            "poller",
            "post",
            "source",
            "tag",
        ),
        *("target", "work"),
    )

    poller: Poller
    channel: Incoming

    def __init__(
        self,
        work: Work[Any],
        source: int,
        tag: int,
        target: Array | None,
        convert: Callable[[Any], Any] | None,
        post: Callable[[NextMessage], None],
    ) -> None:
        self.work = work
        self.source = source
        self.tag = tag
        self.target = target
        self._into = None if target is None else contents(target)  # which cannot be taken away from now on
        self.convert = convert
        self.post = post
        self.operation: Operation | None = None
        self.got = -1
        self._number = 0
        self._place: Array | bytes = b""

    def poll(self) -> None:
        """Look for what has come, in the awaiting task's turn; see `work.Driver`."""
        if not self.poller.until(self._poll_once):
            self.work._driven_by(None)

    def _poll_once(self) -> bool:
        self.channel.poll()
        return self.got >= 0 or self.operation is not None

    def fits(self, signature: bytes, nbytes: int, number: int) -> bool:
        """Whether a message of so many bytes is such as it receives."""
        target = self.target
        if target is None:
            return nbytes > 0 and signature == message_signature(_BYTE, nbytes, number)
        return nbytes == target.nbytes and signature == message_signature(target.dtype, target.size, number)

    def receive(self, source: int, number: int, data: bytes | memoryview) -> None:
        """Take a message that fits, and end well."""
        self.got, self._number = source, number
        if self.target is None:
            self._place = data if type(data) is bytes else bytes(data)
            complete(self.work, (source, self._place), self.convert)
        else:
            assert self._into is not None
            self._into[:] = data
            self._place = self.target
            self.work._finish(source)

    def match(self) -> Match:
        """The message that it has, as one that is here and belongs to nobody: its await was cancelled in the
        very turn of the loop in which it came."""
        place = np.frombuffer(self._place, np.uint8) if isinstance(self._place, bytes) else flat(self._place)
        signature = message_signature(place.dtype, place.size, self._number)
        users = self.target is not None
        return Match(self.got, self.tag, self._number, None, place, users, None, signature, complete=True)
