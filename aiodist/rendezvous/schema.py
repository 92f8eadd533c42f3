"""The methods of a store, and what their arguments must be. What does not fit never reaches the machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any


class RefusedError(Exception):
    """A request has no meaning, or contradicts others; the machine answers it with a `Failure`.

    Args:
        message: one line that says what is wrong.
        hint: what to do about it.
        kind: as in `Failure`.
    """

    def __init__(self, message: str, hint: str = "", kind: str = "usage") -> None:
        super().__init__(message)
        self.message, self.hint, self.kind = message, hint, kind


MAX_KEY = 4096
"""Characters of a key, a name or a prefix."""


class _Is:
    def __init__(self, *types: type) -> None:
        self.types = types

    def __call__(self, value: Any) -> bool:
        return type(value) in self.types  # exactly: True is no int here


class _ListOf:
    def __init__(self, kind: type) -> None:
        self._kinds = {kind}

    def __call__(self, value: Any) -> bool:
        return type(value) is list and self._kinds.issuperset(map(type, value))


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


_TEXT, _BYTES, _INT = _Is(str), _Is(bytes), _Is(int)
_TEXTS, _MANY_BYTES, _INTS = _ListOf(str), _ListOf(bytes), _ListOf(int)

METHODS: dict[str, tuple[Callable[[Any], bool], ...]] = {
    "set": (_TEXT, _BYTES, _Is(int, float, type(None))),  # key, value, lease in seconds
    "multi_set": (_TEXTS, _MANY_BYTES),
    "multi_get": (_TEXTS, _is_seconds),
    "wait": (_TEXTS, _is_seconds),
    "check": (_TEXTS,),
    "add": (_TEXT, _INT),
    "append": (_TEXT, _BYTES),
    "compare_set": (_TEXT, _BYTES, _BYTES),  # key, expected, desired
    "claim": (_TEXT, _BYTES),  # key, whose it is
    "delete_key": (_TEXT,),
    "list_keys": (_TEXT,),  # prefix
    "num_keys": (_TEXT,),
    "fence": (),
    "lease_grant": (_Is(int, float),),  # ttl in seconds
    "lease_renew": (_INT,),  # token
    "lease_set": (_INT, _TEXT, _BYTES),  # token, key, value
    "lease_claim": (_INT, _TEXT, _BYTES),  # token, key, value
    "lease_end": (_INT,),  # token
    "gather": (_TEXT, _INT, _INT, _BYTES, _is_seconds),  # name, world size, rank, card
    "watch": (_TEXT,),
    "cancel": (_INT,),  # the id of a request whose answer nobody wants any more
    "resume": (_INTS, _INT),  # the ids of all requests whose answers are still wanted, the last confirmed
    "goodbye": (),
    "ping": (),
}

# What changes the store, and is confirmed: the machine keeps the answer until the client has it.
CHANGES = {"set", "multi_set", "add", "append", "compare_set", "claim", "delete_key", "gather", "fence"}
CHANGES |= {"lease_grant", "lease_set", "lease_claim", "lease_end"}


# What fits by its types alone, as one look-up: checking one by one takes 1 µs of the 6 of a request.
_PLAIN: set[tuple[Any, ...]] = set()
for _method, _checks in METHODS.items():
    _choices = [check.types for check in _checks if isinstance(check, _Is)]
    if len(_choices) == len(_checks):
        _PLAIN.update((_method, *types) for types in itertools.product(*_choices))


def check_name(name: str) -> None:
    """Refuse a key, name or prefix that is to be kept, and that no client of ours would send."""
    if len(name) > MAX_KEY:
        raise RefusedError(f"a store's keys have at most {MAX_KEY} characters, this one {len(name)}")


def check_args(method: str, args: list[Any]) -> None:
    """Refuse a method that does not exist, or arguments that it cannot take."""
    if (method, *map(type, args)) in _PLAIN:
        return
    schema = METHODS.get(method)
    if schema is None:
        raise RefusedError(f"the store has no method '{method[:40]}'")
    if len(args) != len(schema):
        raise RefusedError(f"{method} takes {len(schema)} arguments, got {len(args)}")
    for number, (value, fits) in enumerate(zip(args, schema, strict=True), 1):
        if not fits(value):
            raise RefusedError(f"argument {number} of {method} cannot be a {type(value).__name__}")
