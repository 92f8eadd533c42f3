"""What writing an object costs, against what the object holds. Pure.

An encoding has no references: what an object holds twice is written twice. So a few small lists that hold
each other can take longer to write than a program lives, and one that holds itself is never written. An
`Account` adds up the time and the bytes that are written, and once for each part those that are held. It
refuses an object as soon as it has written far more than it holds. So the time until then is in proportion to
what the program has built, plus some ms, whatever that is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

CONTAINER = 2000
"""Nanoseconds of a list, dict or other container, and of an array; about."""

MIXED = 300
"""Nanoseconds of an item, in a container that is gone through one by one."""

LEAF = 20
"""Nanoseconds of a number or a text, in a container that holds nothing else."""

PLACE = 8
"""Bytes of a place in a container."""

TEXT = 4096
"""Characters from which on a text that is held again is known again."""

FREE_TIME = 8192 * CONTAINER
"""Nanoseconds that any object may take, however little it holds."""

FREE_BYTES = 1 << 30
"""Bytes that any object may be written as, however little it holds."""

TIMES = 16
"""How often an object may write what it holds, beyond that."""


class Repeated(Exception):
    """The finding that an object holds itself, or the same parts far too often; says which."""


class Account:
    """What one encoding has written so far, and what of it was held.

    Attributes:
        time, nbytes: written.
    """

    __slots__ = ("_fresh", "_held_bytes", "_held_time", "_open", "_seen", "nbytes", "time")

    def __init__(self) -> None:
        self.time = self.nbytes = 0
        self._held_time = self._held_bytes = 0
        self._fresh = True  # the container that is being written was not written before
        self._open: set[int] = set()  # the containers around
        self._seen: set[int] = set()

    def enter(self, key: int) -> bool:
        """Begin a container.

        Args:
            key: its id. It has to live until the encoding ends.

        Returns:
            What `leave` wants to know.

        Raises:
            Repeated: it is in itself, or too much was written.
        """
        if key in self._open:
            raise Repeated("contains itself")
        self._add(CONTAINER, PLACE)
        outer = self._fresh
        self._fresh = key not in self._seen
        self._seen.add(key)
        self._open.add(key)
        return outer

    def leave(self, key: int, outer: bool) -> None:
        """End a container, with what `enter` has returned."""
        self._open.discard(key)
        self._fresh = outer

    def mixed(self, count: int) -> None:
        """Add so many items, which are not all leaves; texts and containers among them are added apart."""
        self._add(MIXED * count, PLACE * count)

    def leaves(self, items: Collection[Any], kinds: Collection[type]) -> None:
        """Add all items of a container, which are plain leaves, of these types."""
        self._add(LEAF * len(items), PLACE * len(items))
        if str in kinds or bytes in kinds:
            texts = items if len(kinds) == 1 else [x for x in items if type(x) is str or type(x) is bytes]
            if max(map(len, texts)) < TEXT:
                self._add(0, sum(map(len, texts)))
            else:
                for text in texts:
                    self.text(text)

    def text(self, text: str | bytes) -> None:
        """Add a text, or bytes."""
        if len(text) < TEXT:
            self._add(LEAF, len(text))
        else:
            self._add(LEAF, PLACE)
            self._hold(id(text), len(text), len(text))

    def large(self, key: int, written: int, held: int) -> None:
        """Add a leaf that may be large, such as an array.

        Args:
            key: its id.
            written: bytes that it is written as.
            held: bytes that it has in memory.
        """
        self._add(CONTAINER, PLACE)
        self._hold(key, written, held)

    def _hold(self, key: int, written: int, held: int) -> None:
        if key not in self._seen:
            self._seen.add(key)
            self._held_bytes += held
        self.nbytes += written
        self._check()

    def _add(self, time: int, nbytes: int) -> None:
        self.time += time
        self.nbytes += nbytes
        if self._fresh:
            self._held_time += time
            self._held_bytes += nbytes
        else:
            self._check()

    def _check(self) -> None:
        if (
            self.time > FREE_TIME + TIMES * self._held_time
            or self.nbytes > FREE_BYTES + TIMES * self._held_bytes
        ):
            raise Repeated("holds the same parts so often that it would take too long to write")
