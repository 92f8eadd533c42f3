"""The training classes for synchronous code: the same arguments and methods, and each call blocks."""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any

from aiodist import ddp
from aiodist.errors import UsageError, shown
from aiodist.portal.facade import SyncProcessGroup
from aiodist.portal.taking import SOURCES

SOURCES[ddp.GradientSync.finish.__code__] = operator.attrgetter("_ending")


class _Training:
    """A training object on a portal's loop. A subclass has the public methods of its `_kind`, blocking.

    A call that Ctrl-C interrupts goes on. What the interrupted thread calls, or reads, next waits for that.

    Attributes:
        portal: of its group.
    """

    _kind: Any

    def __init_subclass__(cls) -> None:
        for name, function in inspect.getmembers(cls._kind, inspect.isfunction):
            if not name.startswith("_") and name != "synced":  # all have the values once it is made
                setattr(cls, name, _method(name, function))

    def __init__(self, pg: Any, *args: Any, **kwargs: Any) -> None:
        group = _group_of(pg, self._kind.__name__, bool(kwargs.get("elastic")))
        self.portal = group.portal
        self._group = group
        self.portal.end_steps(group)
        self._made = self.portal.step(group, self._kind, group, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self.portal.end_steps(self._group)
        return self.portal.call(getattr, self._made, name)

    def __repr__(self) -> str:
        return f"<Sync{self._kind.__name__} {self._group!r}>"


def _group_of(pg: Any, kind: str, elastic: bool) -> SyncProcessGroup:
    """The group of a portal that is meant: itself, or the one behind a group of torch's."""
    if isinstance(pg, SyncProcessGroup):
        return pg
    behind = getattr(pg, "ours", None)
    if not isinstance(behind, SyncProcessGroup):
        raise UsageError(
            f"portal.{kind} takes a group of the portal, or torch's on aiodist, not {shown(pg)}",
            hint=f"In an async program write `await dist.{kind}(…)`",
        )
    if elastic:
        raise UsageError(
            "a group of torch's keeps its members", hint="Pass dist.portal.join()'s group with elastic=True"
        )
    return behind


def _method(name: str, function: Any) -> Any:
    @functools.wraps(function)
    def blocking(self: _Training, *args: Any, **kwargs: Any) -> Any:
        self.portal.end_steps(self._group)
        return self.portal.step(self._group, getattr(self._made, name), *args, **kwargs)

    signature = inspect.signature(function)
    blocking.__signature__ = signature  # type: ignore[attr-defined]
    return blocking


class GradientSync(_Training):
    """`aiodist.GradientSync` for synchronous code: `finish` blocks until the averages are there.

    Made when all ranks have rank 0's values. `pg` is a group of the portal's, or torch's, made by aiodist.
    After a `finish` that Ctrl-C interrupts call it again: it says how the step ended.
    """

    _kind = ddp.GradientSync


class DiLoCo(_Training):
    """`aiodist.DiLoCo` for synchronous code: `step` blocks while an exchange is applied.

    Made when all ranks have rank 0's values. `pg` is a group of the portal's, or torch's, made by aiodist.
    With `delay` an exchange goes on in the portal's thread while this one computes.
    """

    _kind = ddp.DiLoCo


class LocalSGD(_Training):
    """`aiodist.LocalSGD` for synchronous code, as `DiLoCo` here."""

    _kind = ddp.LocalSGD


class ShardedOptimizer(_Training):
    """`aiodist.ShardedOptimizer` for synchronous code: `step` blocks until all have the new values.

    Made when all ranks have rank 0's values. `pg` is a group of the portal's, or torch's, made by aiodist.
    `restore` stays an async function; it runs on the portal's loop.
    """

    _kind = ddp.ShardedOptimizer
