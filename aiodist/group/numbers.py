"""The numbers of one group's operations on this rank: the one place where they are counted. Pure.

Each number is taken inside the user's call (law 1). So ranks that make the same calls give them the same
numbers, without asking each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from aiodist.base.operations import Kind

_RECV = Kind.recv
_KEPT = 4096


@dataclass(slots=True)
class Numbers:
    """The counts of one group on one rank.

    Attributes:
        issued: collectives that have a number, ended or not; also the next one's number.
        unbegun: numbers that were taken, of collectives that begin later.
        counts: of messages, and what else is counted apart, by `next_of`'s stream.
    """

    issued: int = 0
    unbegun: set[int] = field(default_factory=set)
    counts: dict[Any, int] = field(default_factory=dict)
    _parts: tuple[int, list[int]] = field(default_factory=lambda: (0, []))  # see `note_part`

    def issue(self) -> int:
        """Take the number of a collective that begins now."""
        number = self.issued
        self.issued = number + 1
        return number

    def reserve(self) -> int:
        """Take the number of a collective that begins later; others may begin before it."""
        number = self.issue()
        self.unbegun.add(number)
        return number

    def note_part(self, seq: int) -> None:
        """Note that the number taken last belongs to the call that took the one before it."""
        before, last = self._parts
        if len(last) >= 2 * _KEPT:
            before, last = self._parts = before + _KEPT, last[_KEPT:]
        last.append(seq)

    def parts_before(self, seq: int) -> int:
        """The count of numbers up to this one that are further steps of calls. From any thread."""
        before, last = self._parts
        return before + bisect_right(last, seq)

    def of_user(self, seq: int) -> int:
        """The place among the user's calls of the call that has a number: one may have taken several."""
        return seq - self.parts_before(seq)

    def hold(self, seq: int) -> None:
        """Note that the collective of a number that was taken begins later."""
        self.unbegun.add(seq)

    def begin(self, seq: int) -> None:
        """Note that the collective of a number begins now."""
        self.unbegun.discard(seq)

    def begun(self, seq: int) -> bool:
        """Whether the collective of a number has begun: it is taken, and neither reserved nor held."""
        return seq < self.issued and seq not in self.unbegun

    def skip(self, seq: int) -> None:
        """Pass a number over: it is taken, and nothing of it begins here, now or later."""
        self.issued = max(self.issued, seq + 1)
        self.unbegun.discard(seq)

    def next_message(self, kind: Kind, peer: int, tag: int, mark: str = "") -> int:
        """Take the next number, from 0 on, of sends to, or receives from, a peer with a tag.

        Args:
            peer: -1: from anybody.
            mark: of the carrier that carries it out, which matches its own (`Carriers.places`).
        """
        stream = (kind is _RECV, peer, tag, mark)  # `next_of`, written out
        number = self.counts.get(stream, 0)
        self.counts[stream] = number + 1
        return number

    def next_of(self, stream: Hashable) -> int:
        """Take the next number, from 0 on, of what is counted apart."""
        number = self.counts.get(stream, 0)
        self.counts[stream] = number + 1
        return number
