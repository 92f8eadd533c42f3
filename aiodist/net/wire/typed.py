"""JSON of another process, as a dataclass: with values of its types, or not at all."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from aiodist.base.errors import WireError
from aiodist.base.sanitize import indented, one_line
from aiodist.net.wire.bounded_json import load_json

T = TypeVar("T")

LONGEST = 4 << 20
"""Bytes of what another process left."""

_LONGEST = 2000  # characters of one text
_INDENT = 40
_LARGEST = 1 << 63  # of integers, also of those that are no numbers of anything


def read(kind: type[T], data: bytes, what: str) -> T:
    """Read a value of `kind` from JSON.

    Args:
        kind: what to make of it, as of `build`.
        data: as it came.
        what: it is, for the error: "a node's report".

    Returns:
        The value; its texts are one printable line each.

    Raises:
        WireError: it is anything else.
    """
    try:
        return build(kind, load_json(data, LONGEST), shown)
    except (ValueError, TypeError, RecursionError) as error:
        words = one_line(str(error), 200)
        raise WireError(f"{what} is unreadable: {words or type(error).__name__}") from error


class JsonMessage:
    """A dataclass that travels as JSON.

    Attributes:
        WHAT: names it, for errors: "a node's report".
    """

    WHAT: ClassVar[str]

    def to_json(self) -> bytes:
        """The message's bytes."""
        me: Any = self
        return json.dumps(asdict(me)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read `to_json`'s bytes; `WireError` on anything else."""
        return read(cls, data, cls.WHAT)


def build(kind: type[T], raw: object, text: Callable[[str], str]) -> T:
    """Make a value of `kind` of parsed JSON.

    A kind is int, str, bool, float, `tuple[kind, ...]`, `dict[str, kind]`, `kind | None`, or a dataclass of
    such fields; those with defaults may be left out.

    Args:
        kind: what to make of it.
        raw: as `json.loads` gives it.
        text: what to make of each text, but for the keys of a dict.

    Raises:
        TypeError: it is anything else.
    """
    return _build(kind, raw, text)  # type: ignore[no-any-return]


def _build(kind: Any, raw: Any, text: Callable[[str], str]) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        if type(raw) is not dict:
            raise TypeError(f"{kind.__name__} is no object")
        types = _types(kind)
        if unknown := raw.keys() - types.keys():
            raise TypeError(f"{kind.__name__} has no {sorted(unknown)[0]!r}")
        return kind(**{name: _build(types[name], value, text) for name, value in raw.items()})
    if isinstance(kind, UnionType):
        if raw is None and NoneType in get_args(kind):
            return None
        [kind] = [one for one in get_args(kind) if one is not NoneType]
        return _build(kind, raw, text)
    if get_origin(kind) is tuple:
        if type(raw) is not list:
            raise TypeError("something else where a list should be")
        return tuple(_build(get_args(kind)[0], item, text) for item in raw)
    if get_origin(kind) is dict:
        if type(raw) is not dict:
            raise TypeError("something else where an object should be")
        return {name: _build(get_args(kind)[1], value, text) for name, value in raw.items()}
    if kind is float and type(raw) is int:
        raw = float(raw)
    if kind is str and type(raw) is str:
        return text(raw)
    if type(raw) is not kind or (kind is int and not -_LARGEST <= raw < _LARGEST):
        raise TypeError(f"something else where {kind.__name__} should be")
    return raw


def shown(text: str) -> str:
    """Text as it is shown to people: it gives their terminal no orders. How far it is indented stays."""
    return indented(text, _LONGEST, _INDENT)


@functools.lru_cache
def _types(kind: type) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
