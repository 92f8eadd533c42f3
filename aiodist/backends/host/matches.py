"""Which receive gets which message: the matches of a group.

Message k of a source and tag goes to the k-th receive that matches one of them. A receive that is taken back
(the await of it was cancelled) leaves its message to the next one, and so on: the receives move up, in their
order. What no receive is left for stays, and the next receive of that source and tag gets it.

A message is matched until its receive has ended: also while a thread copies it to the receive's tensor, or
decodes it. So a receive that is posted meanwhile matches the next message, and one that is taken back leaves
this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from aiodist.backends.base import Array, Operation, as_bytes
from aiodist.backends.buffers import Buffers
from aiodist.backends.host.copies import TensorCopy
from aiodist.base.types import message_signature


class Decoded(NamedTuple):
    """The object that a thread makes, or has made, of a message's bytes; and how (`Decoding`)."""

    how: object
    object: asyncio.Future[Any]


@dataclass(slots=True, eq=False)
class Match:
    """A message and the receive that it was matched with.

    Args:
        source: group rank of the sender.
        number: of the message, among those of its source and tag.
        receiver: the receive that gets it; None: nobody for now.
        place: where its bytes go, contiguous and of one axis.
        users: `place` is the receiver's tensor, or what `made` copies to it.
        made: copies `place`, which is the message's own then, to the receiver's tensor, which is not
            contiguous.
        signature: the message's, once it is known.

    Attributes:
        complete: all bytes are in `place`.
        copy: what copies them to the receiver's tensor now.
        decoded: the object that a thread makes of them. It stays when the receive is taken back.
        unfit: the receiver that the message does not fit, if it does not fit the last one.
        waits: its bytes, where it stays with its sender or in the channel, since it fits no receive; else -1.
        order: -1: it came before all that nobody has matched (`messages.Arrival`).
    """

    source: int
    tag: int
    number: int
    receiver: Operation | None
    place: Array
    users: bool
    made: Buffers | None
    signature: bytes | None
    complete: bool = False
    copy: TensorCopy | None = None
    decoded: Decoded | None = None
    unfit: Operation | None = None
    waits: int = -1
    order: int = -1

    def sever(self) -> memoryview:
        """Go on in memory of its own → that memory, with what is in the receiver's if all is there by now.
        The receiver's is not touched any more by what copies to it."""
        if self.copy is not None:
            self.copy.stop()
            self.copy = None
        if self.complete and self.signature is None:  # it bore the one that was expected: nobody was told
            self.signature = message_signature(self.place.dtype, self.place.size, self.number)
        if self.users and self.made is None:
            own = np.empty(self.place.nbytes, np.uint8)
            if self.complete:
                own[:] = self.place.view(np.uint8)
            self.place = own
        self.users, self.made = False, None
        return as_bytes(self.place)


def move_up(matches: Iterable[Match]) -> list[tuple[Match, Operation | None]]:
    """Which matches of one source and tag, given in order, get another receiver, and whom: the receivers keep
    their order, and the first ones have the first messages. Nothing is changed."""
    all_matches = list(matches)
    receivers = [match.receiver for match in all_matches if match.receiver is not None]
    nobody = repeat(None, len(all_matches) - len(receivers))
    return [
        (match, receiver)
        for match, receiver in zip(all_matches, chain(receivers, nobody), strict=True)
        if match.receiver is not receiver
    ]


class Matches:
    """The matches of one group on one rank that are not fulfilled, by source and tag.

    Attributes:
        numbers: by source and tag, of the message that is matched next.
        unowned_counts: by source and tag, how many matches have no receiver; nothing where all have.
    """

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, int], int] = {}
        self._open: dict[tuple[int, int], dict[int, Match]] = {}
        self.unowned_counts: dict[tuple[int, int], int] = {}

    def next(self, source: int, tag: int) -> int:
        """The number of the message that is matched next."""
        return self.numbers.get((source, tag), 0)

    def find(self, source: int, tag: int, number: int) -> Match | None:
        """The match of a message."""
        matches = self._open.get((source, tag))
        return None if matches is None else matches.get(number)

    def enter(self, match: Match) -> None:
        """Enter the match of the next message."""
        stream = match.source, match.tag
        self.numbers[stream] = match.number + 1
        matches = self._open.get(stream)
        if matches is None:
            matches = self._open[stream] = {}
        matches[match.number] = match

    def pass_over(self, source: int, tag: int) -> None:
        """Count a message that was received without a match."""
        self.numbers[source, tag] = self.numbers.get((source, tag), 0) + 1

    def remove(self, match: Match) -> None:
        """Take out a match that is fulfilled."""
        stream = match.source, match.tag
        matches = self._open[stream]
        del matches[match.number]
        if not matches:
            del self._open[stream]

    def restore(self, match: Match) -> None:
        """Enter a match again that was fulfilled: its receive was taken back all the same."""
        stream = match.source, match.tag
        matches = {**self._open.get(stream, {}), match.number: match}
        self._open[stream] = dict(sorted(matches.items()))

    def give_back(self, match: Match) -> None:
        """Take out the last match, which its source knows nothing of: its number is the next again."""
        self.remove(match)
        self.numbers[match.source, match.tag] = match.number

    def of(self, source: int, tag: int) -> list[Match]:
        """All open matches of a source and tag, in order."""
        return list(self._open.get((source, tag), {}).values())

    def unowned(self, source: int, tag: int) -> Match | None:
        """The first message of a source and tag that has no receiver."""
        if not self.unowned_counts or (source, tag) not in self.unowned_counts:
            return None
        return next(match for match in self._open[source, tag].values() if match.receiver is None)

    def unowned_sources(self, tag: int) -> list[int]:
        """Sources that have messages without a receiver."""
        return [source for source, of in self.unowned_counts if of == tag] if self.unowned_counts else []

    def count(self, source: int, tag: int) -> None:
        """Count again those without a receiver, after one has changed."""
        unowned = sum(match.receiver is None for match in self._open.get((source, tag), {}).values())
        if unowned:
            self.unowned_counts[source, tag] = unowned
        else:
            self.unowned_counts.pop((source, tag), None)

    def waiting(self) -> list[Operation]:
        """The receives whose messages are not known yet."""
        return [
            match.receiver
            for matches in self._open.values()
            for match in matches.values()
            if match.receiver is not None and match.signature is None and not match.complete
        ]

    def unfinished(self, source: int) -> list[Operation]:
        """The receives whose messages have come from a member in part, or were only offered."""
        return [
            match.receiver
            for (sender, _), matches in self._open.items()
            for match in matches.values()
            if sender == source and match.receiver is not None and match.signature and not match.complete
        ]

    def forget(self) -> None:
        """Let go of all."""
        self._open.clear()
        self.unowned_counts.clear()
