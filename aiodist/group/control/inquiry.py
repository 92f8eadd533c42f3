"""One question to all members of a group: who has arrived, and who disagrees. Pure.

An operation without progress asks its group's leader (group rank 0), the leader asks every member what
it issued under that number, and the answers give one of two verdicts. Costs nothing while all is well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiodist.base.types import agree

SILENT = "nothing yet"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The verdict that members issued different operations under one number.

    Args:
        said: what each issued, by global rank.
        partial: whether some had not issued theirs, or can no longer tell.
    """

    said: dict[int, str]
    partial: bool


@dataclass(frozen=True, slots=True)
class Absence:
    """The verdict that no member disagrees.

    Args:
        ranks: members that had not issued the operation when asked.
        unheard: members that did not answer. Neither: all had issued it.
    """

    ranks: tuple[int, ...]
    unheard: tuple[int, ...] = ()


class Inquiry:
    """The leader's ledger for one operation.

    Args:
        members: global ranks of the group.
        seq: the operation's number.
    """

    def __init__(self, members: Iterable[int], seq: int) -> None:
        self.seq = seq
        self.askers: set[int] = set()
        self._members = frozenset(members)
        self.rounds = 0
        self._answers: dict[int, tuple[bool, bytes, str]] = {}

    def begin(self) -> tuple[int, ...]:
        """Begin a round of questions; returns whom to ask: all who have not said that they arrived."""
        self.rounds += 1
        self._answers = {rank: answer for rank, answer in self._answers.items() if answer[0]}
        return tuple(sorted(self._members - self._answers.keys()))

    def answer(self, rank: int, arrived: bool, signature: bytes, words: str) -> None:
        """Take a member's answer. An empty signature says: arrived, and long forgotten what it was."""
        if rank in self._members:
            self._answers[rank] = (arrived, signature, words)

    def complete(self) -> bool:
        """Whether all have answered."""
        return len(self._answers) == len(self._members)

    def verdict(self) -> Disagreement | Absence:
        """Judge by the answers so far."""
        known = {
            rank: (signature, words)
            for rank, (arrived, signature, words) in self._answers.items()
            if arrived and signature
        }
        signatures = [signature for signature, _ in known.values()]
        if any(not agree(signatures[0], other) for other in signatures[1:]):
            said = {rank: words for rank, (_, words) in known.items()}
            return Disagreement(
                {rank: said.get(rank, SILENT) for rank in self._members}, len(said) < len(self._members)
            )
        late = {rank for rank, answer in self._answers.items() if not answer[0]}
        return Absence(tuple(sorted(late)), tuple(sorted(self._members - self._answers.keys())))
