"""Dataclasses as what travels: dictionaries of their fields. Pure.

The sender takes any dataclass apart. The receiver makes one only where its own annotations name the class: so
no name of a class travels, and what is built is what the receiver's program says.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
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


def parameters(function: Callable[..., Any]) -> list[tuple[slice, Build]]:
    """Builders for a function's positional arguments, as (places, builder), by its annotations."""
    try:
        takes, written = inspect.signature(function).parameters.values(), _written(function)
    except (TypeError, ValueError):
        return []
    found: list[tuple[slice, Build]] = []
    for place, one in enumerate(takes):
        if one.kind in (one.KEYWORD_ONLY, one.VAR_KEYWORD):
            break  # no argument of a call goes there, or behind it
        build = builder(_hint_of(written, one.annotation))
        if build is not None:
            found.append((slice(place, None if one.kind is one.VAR_POSITIONAL else place + 1), build))
    return found


def returned(function: Any, *, stream: bool) -> Build | None:
    """The builder for a function's result, or for each part of its stream, by its annotation."""
    written = _written(function)
    hint = _hint_of(written, getattr(written, "__annotations__", {}).get("return"))
    if stream:
        name = getattr(typing.get_origin(hint), "__name__", "")
        hint = typing.get_args(hint)[0] if name in _STREAMS and typing.get_args(hint) else None
    return builder(hint)


def builder(hint: Any) -> Build | None:
    """The function that makes a value of the annotated type of what travelled; None: that is the value."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    named = hint if origin is None else origin
    if isinstance(named, type) and dataclasses.is_dataclass(named):
        return _record(named, args)
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


def _record(cls: type, args: tuple[Any, ...]) -> Build:
    """The builder of a dataclass; of a generic one, with the arguments that the annotation gives it."""
    hints = _hints_of_fields(cls)
    given = _given(cls, args)
    fields = {one.name: one for one in dataclasses.fields(cls) if one.init}
    inner: dict[str, Build] = {}
    ready = False

    def build(value: Any) -> Any:
        nonlocal ready
        if type(value) is not dict:
            raise Misfit(f"it is to be a {cls.__name__}, and came as {type(value).__name__}")
        if not ready:  # only now: a class may have fields of its own type
            makes = {name: builder(_filled(hints.get(name), given)) for name in fields}
            inner.update({name: make for name, make in makes.items() if make is not None})
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


def _given(cls: type, args: tuple[Any, ...]) -> dict[Any, Any]:
    """The arguments of a generic class, by its type variables."""
    names: tuple[Any, ...] = getattr(cls, "__parameters__", ())
    plain = len(names) == len(args) and all(isinstance(name, typing.TypeVar) for name in names)
    return dict(zip(names, args, strict=True)) if plain else {}


def _filled(hint: Any, given: dict[Any, Any]) -> Any:
    """A hint with these arguments for its type variables."""
    if isinstance(hint, typing.TypeVar):
        return given.get(hint)
    names = getattr(hint, "__parameters__", ()) if typing.get_origin(hint) is not None else ()
    if any(name in given for name in names):
        return hint[tuple(given.get(name, name) for name in names)]
    return hint


def _hint_of(written: Any, annotation: Any) -> Any:
    """The type that an annotation in a signature names; None where there is none, or for None."""
    if annotation is None or annotation is inspect.Parameter.empty:
        return None
    module = sys.modules.get(getattr(written, "__module__", None) or "")
    names = getattr(written, "__globals__", None) or getattr(module, "__dict__", {})
    return _hint(annotation, written, names, names)


def _written(function: Any) -> Any:
    """The function, or the class, that was written with the signature."""
    while not isinstance(function, type):
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isroutine(function):
            break
        else:
            function = type(function).__call__
    return function


def _hints_of_fields(cls: type) -> dict[str, Any]:
    """The types that a class's annotations name, and those of its bases."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        module = sys.modules.get(base.__module__)
        for name, annotation in inspect.get_annotations(base).items():
            # As `typing.get_type_hints`: a field may have the name of the type that it is annotated with.
            hints[name] = _hint(annotation, base, dict(vars(base)), getattr(module, "__dict__", {}))
    return hints


def _hint(annotation: Any, owner: Any, outer: dict[str, Any], inner: dict[str, Any]) -> Any:
    """The type that one annotation names; None where it has names that only a type checker knows."""
    one = types.SimpleNamespace(
        __annotations__={"it": annotation}, __type_params__=getattr(owner, "__type_params__", ())
    )
    try:
        return typing.get_type_hints(one, outer, inner)["it"]
    except Exception:
        return None
