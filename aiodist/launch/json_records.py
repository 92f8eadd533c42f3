"""JSON that another agent left in the store, as a dataclass: with values of its types, or not at all."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from aiodist.base.errors import WireError
from aiodist.base.sanitize import one_line
from aiodist.net.wire.bounded_json import load_json

T = TypeVar("T")

LONGEST = 4 << 20
"""Bytes of what another agent left."""

_LONGEST = 2000  # characters of one text
_INDENT = 40
_LARGEST = 1 << 63  # of integers, also of those that are no numbers of anything


def read(kind: type[T], data: bytes, what: str) -> T:
    """Read a value of `kind` from JSON.

    A kind is int, str, bool, float, `tuple[kind, ...]`, `kind | None`, or a dataclass of such fields.

    Args:
        kind: what to make of it. A dataclass's fields with defaults may be left out.
        data: as it came.
        what: it is, for the error: "a node's report".

    Returns:
        The value; its texts are one printable line each.

    Raises:
        WireError: it is anything else.
    """
    try:
        return _build(kind, load_json(data, LONGEST))  # type: ignore[no-any-return]
    except (ValueError, TypeError, RecursionError) as error:
        words = one_line(str(error), 200)
        raise WireError(f"{what} is unreadable: {words or type(error).__name__}") from error


def _build(kind: Any, raw: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        if type(raw) is not dict:
            raise TypeError(f"{kind.__name__} is no object")
        types = _types(kind)
        if unknown := raw.keys() - types.keys():
            raise TypeError(f"{kind.__name__} has no {sorted(unknown)[0]!r}")
        return kind(**{name: _build(types[name], value) for name, value in raw.items()})
    if isinstance(kind, UnionType):
        if raw is None and NoneType in get_args(kind):
            return None
        [kind] = [one for one in get_args(kind) if one is not NoneType]
        return _build(kind, raw)
    if get_origin(kind) is tuple:
        if type(raw) is not list:
            raise TypeError("something else where a list should be")
        return tuple(_build(get_args(kind)[0], item) for item in raw)
    if kind is float and type(raw) is int:
        raw = float(raw)
    if kind is str and type(raw) is str:
        return shown(raw)
    if type(raw) is not kind or (kind is int and not -_LARGEST <= raw < _LARGEST):
        raise TypeError(f"something else where {kind.__name__} should be")
    return raw


def shown(text: str) -> str:
    """Text as it is shown to people: it gives their terminal no orders. How far it is indented stays."""
    words = text.lstrip(" ")
    return " " * min(len(text) - len(words), _INDENT) + one_line(words, _LONGEST)


@functools.lru_cache
def _types(kind: type) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
