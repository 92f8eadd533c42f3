"""The course of the bytes of one direction of one proxied connection. Pure: bytes in, what to do out.

A fault is planned at a byte's number, counted from 0 over the life of the connection, so it hits the same
byte of the same frame in every run, however the network cuts the stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["corrupt", "drop", "clog", "finish", "cut"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault.

    Attributes:
        kind: 'corrupt' (flip one bit of byte `at`, and go on), 'drop' (this byte and all after it vanish,
            nobody is told), 'clog' (from this byte on nothing is read any more, until `unclog`), 'finish'
            (the stream ends in order before this byte: FIN), 'cut' (the connection is reset before this
            byte: RST).
        at: the byte's number.
        bit: of 'corrupt', 0 to 7.
    """

    kind: Kind
    at: int
    bit: int = 0

    def __post_init__(self) -> None:
        if self.at < 0 or not 0 <= self.bit < 8:
            raise ValueError(f"a fault needs at ≥ 0 and 0 ≤ bit < 8, not {self}")


@dataclass(frozen=True, slots=True)
class Forward:
    """The order to pass these bytes on."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Clog:
    """The order to read no more; these bytes go first once the way is free again."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Finish:
    """End this direction in order, the other goes on."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The order to reset the connection."""


Effect = Forward | Clog | Finish | Cut


class Course:
    """One direction of one connection.

    Args:
        faults: the plan.

    Attributes:
        passed: bytes that came in so far.
        dropping: whether all that comes vanishes.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.passed = 0
        self.dropping = False
        self._plan = sorted(faults, key=_at)

    def add(self, kind: Kind, after: int, bit: int = 0) -> None:
        """Plan one more, so many bytes from here."""
        self._plan = sorted([*self._plan, Fault(kind, self.passed + after, bit)], key=_at)

    def feed(self, data: bytes) -> list[Effect]:
        """Bytes came in; what to do, in order. After `Finish` and `Cut` nothing more may be fed."""
        effects: list[Effect] = []
        start = self.passed
        good = bytearray()
        done = 0  # bytes of `data` that were looked at
        while self._plan and self._plan[0].at < start + len(data):
            fault = self._plan.pop(0)
            here = max(fault.at - start, done)  # one that is planned before what has passed comes now
            good += data[done:here]
            done = here
            match fault.kind:
                case "corrupt":
                    if here < len(data):
                        good.append(data[here] ^ (1 << fault.bit))
                        done = here + 1
                case "drop":
                    self._forward(good, effects)
                    good = bytearray()
                    self.dropping = True
                case "clog":
                    self._forward(good, effects)
                    self.passed = start + done
                    return [*effects, Clog(data[done:])]
                case "finish" | "cut":
                    self._forward(good, effects)
                    self.passed = start + done
                    return [*effects, Finish() if fault.kind == "finish" else Cut()]
        good += data[done:]
        self.passed = start + len(data)
        self._forward(good, effects)
        return effects

    def _forward(self, data: bytes | bytearray, effects: list[Effect]) -> None:
        if data and not self.dropping:
            effects.append(Forward(bytes(data)))


def _at(fault: Fault) -> int:
    return fault.at
