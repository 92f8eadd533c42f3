"""Watches: who is told of changes under a prefix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aiodist.rendezvous.events import Effect, Push
from aiodist.rendezvous.machine.budget import CALL_COST, Budget, weight
from aiodist.rendezvous.machine.changes import Call
from aiodist.rendezvous.machine.entries import Entries
from aiodist.rendezvous.rules import RefusedError, check_name

MAX_WATCHED = 32 << 20  # bytes under a prefix that is watched, when the watch begins
PUSH_BYTES = 1 << 20  # about so many leave in one piece


@dataclass(eq=False, slots=True)
class Watches:
    """The watches of a store. The state comes first, in pieces; all but the last of them end in None."""

    budget: Budget
    effects: list[Effect]
    entries: Entries
    calls: dict[Call, str] = field(default_factory=dict)  # the prefix of each

    def watch(self, call: Call, now: float, prefix: str) -> None:
        """Begin a watch."""
        self.forget(call)  # it is sent again
        check_name(prefix)
        found = [(e.revision, key, e.value) for key, e in self.entries.items() if key.startswith(prefix)]
        size = sum(len(key) + len(value) for _, key, value in found)
        if size > MAX_WATCHED:
            raise RefusedError(
                f"{size >> 20} MiB lie under '{prefix[:80]}'; a watch can begin with {MAX_WATCHED >> 20}",
                "Watch a longer prefix",
            )
        self.budget.begin_wait(_cost(prefix))
        self.calls[call] = prefix
        piece: list[Any] = []
        size = 0
        for revision, key, value in sorted(found):
            if piece and size + len(value) > PUSH_BYTES:
                self.effects.append(Push(*call, [*piece, None]))
                piece, size = [], 0
            piece.append([key, value, revision])
            size += len(key) + len(value)
        self.effects.append(Push(*call, piece))

    def forget(self, call: Call) -> None:
        """End a watch, if there is one."""
        prefix = self.calls.pop(call, None)
        if prefix is not None:
            self.budget.end_wait(_cost(prefix))

    def tell(self, key: str, value: bytes | None, revision: int) -> None:
        """Tell who watches a key that it holds this now; None: it is gone."""
        news = [[key, value, revision]]
        for call, prefix in self.calls.items():
            if key.startswith(prefix):
                self.effects.append(Push(*call, news))


def _cost(prefix: str) -> int:
    return CALL_COST + weight(prefix)
