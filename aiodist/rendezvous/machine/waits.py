"""Calls that wait for keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiodist.rendezvous.machine.budget import CALL_COST, KEY_COST, WANTED_COST, Budget, weight
from aiodist.rendezvous.machine.changes import Call
from aiodist.rendezvous.machine.entries import Entries
from aiodist.rendezvous.machine.sessions import Sessions
from aiodist.rendezvous.machine.timers import Timers
from aiodist.rendezvous.rules import nobody_set


@dataclass(slots=True)
class KeyWaiter:
    """A call that waits for keys."""

    keys: list[str]
    missing: set[str]
    wants_values: bool
    timeout: float
    cost: int


@dataclass(eq=False, slots=True)
class KeyWaits:
    """The calls of a store that wait for keys."""

    budget: Budget
    timers: Timers
    sessions: Sessions
    entries: Entries
    calls: dict[Call, KeyWaiter] = field(default_factory=dict)
    wanted: dict[str, dict[Call, None]] = field(default_factory=dict)  # key → who waits for it, in order

    def wait(self, call: Call, now: float, keys: list[str], timeout: float) -> None:
        """Answer as soon as all keys are there."""
        self._await(call, now, keys, timeout, wants_values=False)

    def multi_get(self, call: Call, now: float, keys: list[str], timeout: float) -> None:
        """Answer as soon as all keys are there → what they hold."""
        self._await(call, now, keys, timeout, wants_values=True)

    def _await(self, call: Call, now: float, keys: list[str], timeout: float, *, wants_values: bool) -> None:
        self.forget(call)  # it is sent again
        entries = self.entries
        try:
            values = [entries[key].value for key in keys]
        except KeyError:
            missing = {key for key in keys if key not in entries}
        else:
            self.sessions.reply(call, values if wants_values else None)
            return
        cost = CALL_COST + sum(map(weight, keys)) + KEY_COST * len(keys) + WANTED_COST * len(missing)
        self.budget.begin_wait(cost)
        self.calls[call] = KeyWaiter(keys, missing, wants_values, timeout, cost)
        self._want(call, missing)
        self.timers.set(now + timeout, self, call)

    def _want(self, call: Call, keys: set[str]) -> None:
        for key in keys:
            self.wanted.setdefault(key, {})[call] = None

    def arrived(self, key: str) -> None:
        """Answer who waited for this key, and for no other any more."""
        entries = self.entries
        for call in list(self.wanted.pop(key, ())):
            waiter = self.calls[call]
            waiter.missing.discard(key)
            if waiter.missing:
                continue
            # A key that came early may be gone again by now.
            waiter.missing = {key for key in waiter.keys if key not in entries}
            self._want(call, waiter.missing)
            if not waiter.missing:
                self.forget(call)
                values = [entries[key].value for key in waiter.keys] if waiter.wants_values else None
                self.sessions.reply(call, values)

    def forget(self, call: Call) -> None:
        """Answer a call no more, if it waits."""
        waiter = self.calls.pop(call, None)
        if waiter is None:
            return
        self.budget.end_wait(waiter.cost)
        for key in waiter.missing:
            calls = self.wanted[key]
            del calls[call]
            if not calls:
                del self.wanted[key]

    def is_due(self, call: Call, at: float) -> bool:
        """Whether a call still waits."""
        return call in self.calls

    def time_out(self, call: Call) -> int:
        """Let a call fail whose time is up → how many keys it waited for."""
        waiter = self.calls[call]
        absent = [place for place, key in enumerate(waiter.keys) if key not in self.entries]
        self.forget(call)
        self.sessions.refuse(call, nobody_set(waiter.keys, absent, waiter.timeout))
        return len(waiter.keys)
