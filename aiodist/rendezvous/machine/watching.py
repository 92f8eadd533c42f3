"""Watches: who is told of changes under a prefix."""

from __future__ import annotations

from typing import Any

from aiodist.rendezvous.events import Push
from aiodist.rendezvous.machine.tables import CALL_COST, Call, Tables, weight
from aiodist.rendezvous.schema import RefusedError, check_name

MAX_WATCHED = 32 << 20  # bytes under a prefix that is watched, when the watch begins
PUSH_BYTES = 1 << 20  # about so many leave in one piece


class Watching(Tables):
    """Adds watches. The state comes first, in pieces; all but the last of them end in None."""

    def _do_watch(self, call: Call, now: float, prefix: str) -> None:
        self._forget_watch(call)  # it is sent again
        self._check_waiting()
        check_name(prefix)
        found = [(e.revision, key, e.value) for key, e in self._data.items() if key.startswith(prefix)]
        size = sum(len(key) + len(value) for _, key, value in found)
        if size > MAX_WATCHED:
            raise RefusedError(
                f"{size >> 20} MiB lie under '{prefix[:80]}'; a watch can begin with {MAX_WATCHED >> 20}",
                "Watch a longer prefix",
            )
        self._make_room(CALL_COST + weight(prefix))
        self._watches[call] = prefix
        piece: list[Any] = []
        size = 0
        for revision, key, value in sorted(found):
            if piece and size + len(value) > PUSH_BYTES:
                self._effects.append(Push(*call, [*piece, None]))
                piece, size = [], 0
            piece.append([key, value, revision])
            size += len(key) + len(value)
        self._effects.append(Push(*call, piece))

    def _forget_watch(self, call: Call) -> None:
        prefix = self._watches.pop(call, None)
        if prefix is not None:
            self.size -= CALL_COST + weight(prefix)

    def _tell_watches(self, key: str, value: bytes | None) -> None:
        news = [[key, value, self._revision]]
        for call, prefix in self._watches.items():
            if key.startswith(prefix):
                self._effects.append(Push(*call, news))
