"""Backends by name: those of aiodist, those that a program registers, those that packages bring.

A package brings one by an entry point of the group `aiodist.backends`:

    [project.entry-points."aiodist.backends"]
    mine = "my_package.engine:MyEngine"
"""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.metadata import entry_points

from aiodist.backends.base import CAPABILITIES
from aiodist.backends.foreign.engine import Engine
from aiodist.base.errors import BackendUnavailable, UsageError

HOST = ("host", "gloo")
"""The host engine, and torch's name for what it does."""

_BUILT_IN = {"mpi": "aiodist.backends.mpi:MpiEngine", "nccl": "aiodist.backends.nccl:NcclEngine"}
_GROUP = "aiodist.backends"

_registered: dict[str, type[Engine]] = {}


def register_backend(name: str, engine: type[Engine]) -> None:
    """Make a backend known under a name, for `init_process_group(backend=name)`.

    Every process of a job registers it. A package does it for all programs by an entry point of the group
    `aiodist.backends`.

    Args:
        name: letters, digits, '-' and '_'; not one of aiodist's.
        engine: a subclass of `aiodist.backends.foreign.Engine`; see docs/write-a-backend.md.

    Raises:
        UsageError: the name is taken, or no name, or the engine is none.
    """
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"{name!r} is not a name for a backend", hint="Use letters, digits, '-' and '_'")
    name = name.lower()
    if name in HOST or name in _BUILT_IN:
        raise UsageError(f"{name!r} is a backend of aiodist's own", hint="Choose another name")
    wrong = _fault(engine)
    if wrong:
        raise UsageError(f"{engine!r} {wrong}", hint="See docs/write-a-backend.md")
    if _registered.get(name, engine) is not engine:
        raise UsageError(f"backend {name!r} is registered already, as {_registered[name].__qualname__}")
    _registered[name] = engine


def known_backends() -> list[str]:
    """Names that `init_process_group` knows, whether their libraries are here or not."""
    brought = (point.name.lower() for point in entry_points(group=_GROUP))
    return sorted({"host", *_BUILT_IN, *_registered, *brought})


def find_engine(name: str) -> type[Engine]:
    """The engine of a name other than the host's. Imports it, and nothing of its library.

    Raises:
        UsageError: nobody knows the name.
        BackendUnavailable: the package that brings it cannot be imported.
    """
    if name in _registered:
        return _registered[name]
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        built_in: type[Engine] = getattr(import_module(module), attribute)
        return built_in
    for point in entry_points(group=_GROUP):
        if point.name.lower() == name:
            try:
                loaded = point.load()
            except Exception as error:
                raise BackendUnavailable(
                    f"backend {name!r} cannot be imported ({type(error).__name__}: {error})",
                    hint=f"Reinstall {point.dist.name if point.dist else point.value}",
                ) from error
            wrong = _fault(loaded)
            if wrong:
                raise BackendUnavailable(
                    f"backend {name!r} ({point.value}) {wrong}",
                    hint="Tell its authors: docs/write-a-backend.md says what it must be",
                )
            engine: type[Engine] = loaded
            return engine
    names = known_backends()
    close = difflib.get_close_matches(name, [*names, "gloo"], 1)
    raise UsageError(
        f"backend {name!r} is not known; there are {', '.join(names)}",
        hint=f"Did you mean {close[0]!r}?" if close else "None picks by what the machine has",
    )


def _fault(engine: object) -> str:
    """The reason why something cannot serve as an engine; '' if it can."""
    if not (isinstance(engine, type) and issubclass(engine, Engine)):
        return "is no subclass of Engine"
    if not getattr(engine, "name", ""):
        return "has no name"
    if not engine.places or not engine.places <= {"cpu", "cuda"}:
        return f"takes tensors on {sorted(engine.places)}; there are 'cpu' and 'cuda'"
    if "cuda" in engine.places and not engine.stages:
        return "takes tensors on 'cuda', but does not stage them (stages = True)"
    if not engine.capabilities <= CAPABILITIES:
        return f"has unknown capabilities: {sorted(engine.capabilities - CAPABILITIES)}"
    return ""
