"""The shapes of a store's arguments and answers: what users write, what goes over the wire, what is a name.

Values are bytes (a str is encoded as UTF-8); keys are str.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiodist.base.errors import UsageError

MAX_KEY = 4096
"""Characters of a key, a name or a prefix."""

Value = bytes | bytearray | memoryview | str


@dataclass(frozen=True)
class Shape:
    """Shape of one argument, or of an answer.

    Args:
        types: that it may have on the wire, exactly: True is no int here.
        listed: it is a list of these.
        named: it is a key, a name or a prefix, or a list of keys: in a `PrefixStore` a prefix stands before.
        least: the least number that it may be; None for no limit.
    """

    types: tuple[type, ...]
    listed: bool = False
    named: bool = False
    least: float | None = None

    def fits(self, value: Any) -> bool:
        """Whether it can be this."""
        if self.listed:
            return type(value) is list and set(self.types).issuperset(map(type, value))
        return type(value) in self.types and (self.least is None or value >= self.least)

    def under(self, prefix: str, value: Any) -> Any:
        """Put an argument below a prefix; `UsageError` where it is too long then."""
        if not self.named:
            return value
        return [check_key(prefix + key) for key in value] if self.listed else check_key(prefix + value)

    def without(self, prefix: str, value: Any) -> Any:
        """Take the prefix off an answer."""
        return [key.removeprefix(prefix) for key in value] if self.named else value


def check_key(key: str) -> str:
    """Return the key as it is, or raise `UsageError`."""
    if not isinstance(key, str):
        raise UsageError(f"a store's keys are str, got {type(key).__name__}")
    if len(key) > MAX_KEY:
        raise UsageError(f"a store's keys have at most {MAX_KEY} characters, this one {len(key)}")
    return key


def check_keys(keys: Sequence[str]) -> list[str]:
    """Several keys as a list, or `UsageError`; one str is not several keys."""
    if isinstance(keys, str):
        raise UsageError(f"expected a list of keys, got the str '{keys[:40]}'", hint=f"Write ['{keys[:40]}']")
    return [check_key(key) for key in keys]


def check_value(value: Value) -> bytes:
    """A value as bytes, or `UsageError`."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise UsageError(f"a store's values are bytes or str, got {type(value).__name__}")


KEY = Shape((str,), named=True)
KEYS = Shape((str,), listed=True, named=True)
VALUE = Shape((bytes,))
VALUES = Shape((bytes,), listed=True)
NUMBER = Shape((int,))
NUMBERS = Shape((int,), listed=True)
FLAG = Shape((bool,))
NOTHING = Shape((type(None),))
TTL = Shape((int, float))  # seconds
TTL_OR_NONE = Shape((int, float, type(None)))
TIMEOUT = Shape((int, float), least=0.0)  # seconds; always the last argument
