"""Calls that wait for keys."""

from __future__ import annotations

from aiodist.rendezvous.machine.tables import CALL_COST, KEY_COST, WANTED_COST, Call, Waiter, weight
from aiodist.rendezvous.machine.watching import Watching
from aiodist.timeouts import spoken


class Waiting(Watching):
    """Adds wait and multi_get."""

    def _do_wait(self, call: Call, now: float, keys: list[str], timeout: float) -> None:
        self._await_keys(call, now, keys, timeout, wants_values=False)

    def _do_multi_get(self, call: Call, now: float, keys: list[str], timeout: float) -> None:
        self._await_keys(call, now, keys, timeout, wants_values=True)

    def _await_keys(
        self, call: Call, now: float, keys: list[str], timeout: float, *, wants_values: bool
    ) -> None:
        if call in self._waiters:
            self._forget_waiter(call)  # it is sent again
        data = self._data
        try:
            values = [data[key].value for key in keys]
        except KeyError:
            missing = {key for key in keys if key not in data}
        else:
            self._reply(call, values if wants_values else None)
            return
        self._check_waiting()
        cost = CALL_COST + sum(map(weight, keys)) + KEY_COST * len(keys) + WANTED_COST * len(missing)
        self._make_room(cost)
        self._waiters[call] = Waiter(keys, missing, wants_values, timeout, cost)
        for key in missing:
            self._wanted.setdefault(key, {})[call] = None
        self._set_timer(now + timeout, "call", call)

    def _arrived(self, call: Call, key: str) -> None:
        waiter = self._waiters[call]
        waiter.missing.discard(key)
        if waiter.missing:
            return
        # A key that came early may be gone again by now.
        waiter.missing = {key for key in waiter.keys if key not in self._data}
        for absent in waiter.missing:
            self._wanted.setdefault(absent, {})[call] = None
        if not waiter.missing:
            del self._waiters[call]
            self.size -= waiter.cost
            self._reply(call, [self._data[key].value for key in waiter.keys] if waiter.wants_values else None)

    def _forget_waiter(self, call: Call) -> None:
        waiter = self._waiters.pop(call, None)
        if waiter is None:
            return
        self.size -= waiter.cost
        for key in waiter.missing:
            calls = self._wanted[key]
            del calls[call]
            if not calls:
                del self._wanted[key]

    def _waited_in_vain(self, call: Call) -> tuple[str, str]:
        """Forget a call whose time is up → message and hint of its failure."""
        waiter = self._waiters[call]
        absent = [key for key in waiter.keys if key not in self._data]
        self._forget_waiter(call)
        listed = ", ".join(f"'{key}'" for key in absent[:5])
        listed += f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        message = f"nobody set {listed} within {spoken(waiter.timeout)}"
        return message, "See whether the process that sets it runs"
