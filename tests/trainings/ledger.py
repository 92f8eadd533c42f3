"""What is known of a training, and what each call may say. Pure.

The law: a call that says that its step counts has it in the state, on all members; one that says that it does
not has it nowhere; and after each call the state is exactly that of the number of steps that the object has.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call that ended.

    Attributes:
        who: process.
        epoch: in which it began.
        before, after: steps of the object.
        counted: what it said; None: it was cancelled, and said nothing.
        state: what else all members must have alike after it.
    """

    who: int
    epoch: int
    before: int
    after: int
    counted: bool | None
    state: Any = None


@dataclass
class Ledger:
    """Of one training.

    Attributes:
        reached: the last step, of those that counted, that all members have ended together.
        restored: calls of `restore`.
    """

    violations: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    reached: int = 0
    restored: int = 0
    ends: dict[int, str] = field(default_factory=dict)

    def wrong(self, words: str) -> None:
        """Note a violation."""
        self.violations.append(words)

    def note(self, at: float, who: object, what: str) -> None:
        """Write down what happened."""
        self.lines.append(f"{at:9.5f} {who}: {what}")

    def said(self, call: Call, together: bool = True) -> None:
        """Note what a call said.

        Args:
            together: no member ends this step before all have come to it.
        """
        self.calls.append(call)
        if together:
            self.reached = max(self.reached, call.after)
        if call.counted and call.after != call.before + 1:
            self.wrong(f"it says that the step counts, and the state is of another one: {call}")

    def check(self, alive: Collection[int]) -> None:
        """Compare what the survivors were told. (The dead may have known of a step that nobody else has.)"""
        first: dict[tuple[int, int], Call] = {}
        for call in self.calls:
            if call.who not in alive:
                continue
            other = first.setdefault((call.epoch, call.before), call)
            alike = (call.after, call.state) == (other.after, other.state)
            if not alike or (None not in (call.counted, other.counted) and call.counted != other.counted):
                self.wrong(f"survivors differ: {other} and {call}")
