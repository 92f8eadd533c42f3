"""What the processes of a simulated run say happened, held against what must never happen. Pure.

Never
    two member lists for one epoch number, decided by anybody;
    a sum that is not exactly that of the epoch's members;
    two answers to one agreement, among those who go on;
    an error that is none of aiodist's;
    a wait without a bound;
    anything left behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence


class Ledger:
    """Of one run.

    Attributes:
        violations: in words.
        epochs: members by epoch number, as they were decided.
        lines: what happened, with times; for people.
        ends: by process, how it ended.
        excluded: uids that others wanted to be without.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.epochs: dict[int, tuple[bytes, ...]] = {}
        self.lines: list[str] = []
        self.ends: dict[int, str] = {}
        self.excluded: set[bytes] = set()
        self.sums = 0
        self.agreements: dict[tuple[int, str, int], dict[int, bool]] = {}  # by process
        self._latest: dict[int, int] = {}
        self._hash = hashlib.blake2b(digest_size=8)

    def note(self, now: float, who: object, what: str) -> None:
        """Something happened."""
        line = f"{now:10.6f} {who!s:>5} {what}"
        self.lines.append(line)
        self._hash.update(line.encode())

    def wrong(self, what: str) -> None:
        """Something happened that must not."""
        self.violations.append(what)
        self.lines.append(f"!!! {what}")

    def entered(self, process: int, epoch: int, members: Sequence[bytes]) -> None:
        """A process goes on in an epoch."""
        known = self.epochs.setdefault(epoch, tuple(members))
        if known != tuple(members):
            self.wrong(f"two epochs {epoch}: process {process} is in another one than those before it")
        if self._latest.get(process, -1) >= epoch:
            self.wrong(f"process {process} came from epoch {self._latest[process]} to epoch {epoch}")
        self._latest[process] = epoch

    def summed(
        self, process: int, epoch: int, step: int, got: Sequence[int], expected: Sequence[int]
    ) -> None:
        """A sum came out."""
        self.sums += 1
        if list(got) != list(expected):
            self.wrong(f"process {process}, epoch {epoch}, step {step}: sum {got}, not {expected}")

    def agreed(self, process: int, epoch: int, group: str, count: int, answer: bool) -> None:
        """An agreement ended."""
        self.agreements.setdefault((epoch, group, count), {})[process] = answer

    def check_agreements(self, living: Collection[int]) -> None:
        """All have ended: who went on from an epoch together, or lived to the end where nothing but deaths
        happened, had the same answers in it.

        Args:
            living: of the last case.
        """
        for (epoch, group, count), answers in self.agreements.items():
            counted = {who for who in answers if self._latest[who] > epoch or who in living}
            same = {who: answers[who] for who in sorted(counted)}
            if len(set(same.values())) > 1:
                self.wrong(f"agreement {count} of {group} in epoch {epoch}: {same}")

    def digest(self) -> str:
        """What sums up the run."""
        return self._hash.hexdigest()
