"""Messages for a neighbour whose link is torn, kept until another stands. Pure.

When a link is torn, it is not known which of the last messages have arrived. So the latest floods are kept,
and sent once more: a rank that has one already takes no notice of it. Messages for one rank that were under
way are lost; a question is asked again. All is bounded, and what is oldest goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

LATEST = 128 << 10
"""Bytes of floods that are said again. It takes milliseconds to see that a link is torn."""

WAITING = 512 << 10
"""Bytes, those included, that may wait for a link: half of what a link lets wait."""


class Unsaid:
    """The messages that wait for links, by neighbour, as bytes."""

    def __init__(self) -> None:
        self._floods = _Latest(LATEST)
        self._waiting: dict[int, _Latest] = {}

    def note(self, neighbour: int, data: bytes, flood: bool) -> None:
        """Add a message for a neighbour, which waits if its link is torn; a flood most likely like others."""
        if flood and not self._floods.ends_with(data):
            self._floods.append(data)
        if (waiting := self._waiting.get(neighbour)) is not None:
            waiting.append(data)

    def torn(self, neighbour: int) -> None:
        """Note that a link has ended, and is to be made anew."""
        if neighbour not in self._waiting:
            self._waiting[neighbour] = _Latest(WAITING, self._floods)

    def take(self, neighbour: int) -> list[bytes]:
        """The messages for a neighbour that come first on a new link, or never: they wait no longer."""
        return list(self._waiting.pop(neighbour, ()))


class _Latest:
    """The latest messages, so many bytes of them at most, and one at least."""

    def __init__(self, limit: int, first: Iterable[bytes] = ()) -> None:
        self._limit = limit
        self._kept: deque[bytes] = deque()
        self._nbytes = 0
        for data in first:
            self.append(data)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._kept)

    def ends_with(self, data: bytes) -> bool:
        """Whether this message came last."""
        return bool(self._kept) and self._kept[-1] == data

    def append(self, data: bytes) -> None:
        """Add one more."""
        self._kept.append(data)
        self._nbytes += len(data)
        while self._nbytes > self._limit and len(self._kept) > 1:
            self._nbytes -= len(self._kept.popleft())
