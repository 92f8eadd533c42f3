"""The options of a test on ranks, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from signal import Signals

from aiodist.base.errors import UsageError, shown

__tracebackhide__ = True  # pytest shows the decorator's line
_TRANSPORTS = ("auto", "shm", "tcp")


@dataclass(frozen=True, slots=True)
class SpmdOptions:
    """What the decorator was given; see `spmd`."""

    world_size: int
    transport: str
    timeout: float
    exits: Mapping[int, int]
    env: Mapping[str, str]
    hosts: int
    backend: str

    def check(self, where: str = "spmd") -> None:
        """Raise `UsageError` where something has no meaning."""
        _want(
            type(self.world_size) is int and self.world_size >= 1,
            *(where, "world_size", self.world_size, "the number of processes, 1 or more"),
        )
        _want(
            self.transport in _TRANSPORTS,
            *(where, "transport", self.transport, "'auto', 'shm' or 'tcp'"),
        )
        _want(
            isinstance(self.timeout, (int, float)) and self.timeout > 0 and not math.isnan(self.timeout),
            *(where, "timeout", self.timeout, "seconds, more than 0"),
        )
        _want(
            type(self.hosts) is int and 1 <= self.hosts <= self.world_size,
            *(where, "hosts", self.hosts, f"from 1 to world_size, {self.world_size}"),
        )
        _want(isinstance(self.backend, str), where, "backend", self.backend, "a string, such as 'host'")
        _want(isinstance(self.exits, Mapping), where, "exits", self.exits, "a mapping, such as {1: -9}")
        _want(isinstance(self.env, Mapping), where, "env", self.env, "a mapping, such as {'NAME': 'value'}")
        codes = [
            code for code in self.exits.values() if type(code) is not int and not isinstance(code, Signals)
        ]
        _want(
            not codes,
            *(where, "exits", codes[0] if codes else 0, "exit codes by rank, and codes are integers"),
        )
        for key, value in self.env.items():
            _want(isinstance(key, str), where, "env", key, "variables by name, and names are strings")
            _want(isinstance(value, str), where, f"env[{key!r}]", value, f"a string, {str(value)!r}")
        wrong = [rank for rank in self.exits if rank not in range(self.world_size)]
        _want(
            not wrong,
            *(where, "exits", [*self.exits], f"exit codes by rank, and ranks go to {self.world_size - 1}"),
        )


def _want(good: bool, where: str, name: str, value: object, what: str) -> None:
    if not good:
        raise UsageError(f"{where}: {name}={shown(value)} must be {what}")
