"""Dataclasses as what travels: dictionaries of their fields. Pure.

The sender takes any dataclass apart. The receiver makes one only where its own annotations name the class: so
no name of a class travels, and what is built is what the receiver's program says.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any, Union

from aiodist.base.errors import UsageError
from aiodist.group.services.outcomes import described

Build = Callable[[Any], Any]

_STREAMS = ("AsyncIterator", "AsyncGenerator", "AsyncIterable")


class Misfit(ValueError):
    """The error that a value does not have the fields of the dataclass it is to become, or that the class
    raised an error (the cause)."""


def fields(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, by name; None of everything else.

    Raises:
        UsageError: it has no value for one of them, or ends an iteration where it is asked for one.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    try:
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    except (AttributeError, StopIteration) as error:  # which no future of a thread can hold
        why = str(error) or type(error).__name__
        raise UsageError(f"a {type(value).__name__} cannot be sent: {why:.200}") from error


def parameters(function: Callable[..., Any]) -> list[tuple[int, Build]]:
    """Builders for a function's positional arguments, as (place, builder), by its annotations."""
    hints = _hints(function)
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
    built = ((place, builder(hints.get(name))) for place, name in enumerate(names))
    return [(place, build) for place, build in built if build is not None]


def returned(function: Any, *, stream: bool) -> Build | None:
    """The builder for a function's result, or for each part of its stream, by its annotation."""
    hint = _hints(function).get("return")
    if stream:
        name = getattr(typing.get_origin(hint), "__name__", "")
        hint = typing.get_args(hint)[0] if name in _STREAMS and typing.get_args(hint) else None
    return builder(hint)


def builder(hint: Any) -> Build | None:
    """The function that makes a value of the annotated type of what travelled; None: that is the value."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(hint, args)
    if origin is list and args:
        inner = builder(args[0])
        return None if inner is None else _each(inner, list)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        inner = builder(args[0])
        return None if inner is None else _each(inner, tuple)
    if origin is tuple:
        places = [builder(arg) for arg in args]
        return _places(places) if any(places) else None
    if origin is dict and len(args) == 2:
        inner = builder(args[1])
        return None if inner is None else _values(inner)
    return None


def _record(cls: type) -> Build:
    hints = _hints(cls)
    fields = {one.name: one for one in dataclasses.fields(cls) if one.init}
    inner: dict[str, Build] = {}
    ready = False

    def build(value: Any) -> Any:
        nonlocal ready
        if type(value) is not dict:
            raise Misfit(f"it is to be a {cls.__name__}, and came as {type(value).__name__}")
        if not ready:  # only now: a class may have fields of its own type
            inner.update({name: make for name in fields if (make := builder(hints.get(name))) is not None})
            ready = True
        unknown = [name for name in value if name not in fields]
        if unknown:
            raise Misfit(f"{cls.__name__} has no field {str(unknown[0])[:50]!r}")
        made = {name: inner[name](item) if name in inner else item for name, item in value.items()}
        try:
            return cls(**made)
        except Exception as error:  # a field without a default is missing, or `__post_init__` raised
            raise Misfit(f"no {cls.__name__} can be made of it: {': '.join(described(error))}") from error

    return build


def _union(hint: Any, args: tuple[Any, ...]) -> Build | None:
    """The builder of the one member that needs one, where no other can come as a container."""
    makes = [(arg, builder(arg)) for arg in args]
    built = [make for _, make in makes if make is not None]
    if not built:
        return None
    if len(built) > 1 or any(make is None and not _is_leaf(arg) for arg, make in makes):
        raise UsageError(
            f"what travels does not say which of {str(hint)[:200]} a value is",
            hint="Name one dataclass; None, numbers, text, bytes and dates may stand beside it",
        )
    return lambda value: built[0](value) if type(value) in (dict, list, tuple) else value


def _is_leaf(hint: Any) -> bool:
    return hint in _LEAVES or typing.get_origin(hint) is typing.Literal


_LEAVES = (type(None), bool, int, float, complex, str, bytes, date, datetime, timedelta)


def _places(places: list[Build | None]) -> Build:
    def build(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(places):
            raise Misfit(f"it is to be a tuple of {len(places)}, and came as {type(value).__name__}")
        return tuple(item if make is None else make(item) for make, item in zip(places, value, strict=True))

    return build


def _each(inner: Build, kind: type) -> Build:
    def build(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise Misfit(f"it is to be a {kind.__name__}, and came as {type(value).__name__}")
        return kind(inner(item) for item in value)

    return build


def _values(inner: Build) -> Build:
    def build(value: Any) -> Any:
        if type(value) is not dict:
            raise Misfit(f"it is to be a dict, and came as {type(value).__name__}")
        return {key: inner(item) for key, item in value.items()}

    return build


def _hints(annotated: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(annotated)
    except Exception:  # names that only a type checker knows
        return {}
