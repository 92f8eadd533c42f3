"""Messages of groups that this process has yet to make. Pure.

Others may have made a group already, and may have broken or left it. They may also speak of groups that
there will never be: so what is kept is bounded, and what is oldest goes. A group that misses it waits for
its timeout.
"""

from __future__ import annotations

from aiodist.group.control.messages import Message

LIMIT = 4 << 20
"""Bytes, about, that are kept in all."""

_COST = 512  # of a message besides its text, about


class Early:
    """Messages by context, the oldest context first."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Message]] = {}
        self._nbytes = 0

    def __len__(self) -> int:
        """The number of contexts."""
        return len(self._kept)

    def keep(self, context: int, message: Message) -> None:
        """Add a message of a group."""
        self._kept.setdefault(context, []).append(message)
        self._nbytes += _cost(message)
        while self._nbytes > LIMIT:
            self.take(next(iter(self._kept)))

    def take(self, context: int) -> list[Message]:
        """Take out what was kept of a group, in order."""
        messages = self._kept.pop(context, [])
        self._nbytes -= sum(map(_cost, messages))
        return messages


def _cost(message: Message) -> int:
    return _COST + len(message.encode())
