"""Training classes and checkpoints for synchronous code: the same arguments and methods; each call blocks."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiodist import ddp
from aiodist.base.errors import UsageError, shown
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
            if not name.startswith("_") and name not in vars(cls):
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
            hint=f"In an async program use dist.{kind}",
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
        # Not by `step(…, *args, **kwargs)`: see `facade._sync`.
        return self.portal._call(self._group, getattr(self._made, name), args, kwargs)

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
    After a load call `synced`. `restore` stays an async function; it runs on the portal's loop.
    """

    _kind = ddp.ShardedOptimizer


class SyncSaving:
    """A checkpoint that is being written, for synchronous code; `wait` stands for `await`.

    Attributes:
        step: that was saved.
    """

    def __init__(self, checkpoints: Checkpoints, saving: ddp.Saving) -> None:
        self._checkpoints = checkpoints
        self._saving = saving
        self.step = saving.step

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._saving.done()

    def wait(self) -> Path:
        """Block until it is whole, on the disk, and return its folder.

        Raises:
            CheckpointError: a rank could not write, or ranks had other values.
            GroupBroken: a member died before it was whole. Older checkpoints are as they were.
        """
        path: Path = self._checkpoints.portal.call(_awaited, self._saving)
        return path


class Checkpoints(_Training):
    """`aiodist.Checkpoints` for synchronous code: leave it by `with`, or `close` it::

        with dist.portal.Checkpoints(pg, "checkpoints", keep=3) as checkpoints:
            checkpoints.load(optimizer=optimizer)
            optimizer.synced()
            while optimizer.steps < steps:
                ...
                if optimizer.steps % 100 == 0:
                    checkpoints.save(optimizer.steps, optimizer=optimizer)

    `save` returns when what is to be saved is copied. Training objects are those of the portal.

    Args:
        pg: a group of the portal's, or torch's, made by aiodist.
        folder, options: as of `aiodist.Checkpoints`.
    """

    _kind = ddp.Checkpoints

    def __init__(self, pg: Any, folder: str | Path, **options: Any) -> None:
        self._group = _group_of(pg, "Checkpoints", elastic=False)
        self.portal = self._group.portal
        self._made = ddp.Checkpoints(self._group._group, folder, **options)

    def save(self, step: int, /, **things: Any) -> SyncSaving | None:
        """`aiodist.Checkpoints.save` → the checkpoint that is being written; None where it was skipped."""
        self.portal.end_steps(self._group)
        saving = self.portal.step(self._group, self._made.save, step, **_behind(things))
        return None if saving is None else SyncSaving(self, saving)

    def load(self, step: int | None = None, /, **things: Any) -> ddp.Checkpoint | None:
        """`aiodist.Checkpoints.load` → the checkpoint; None where `step` is None and there is none."""
        self.portal.end_steps(self._group)
        found: ddp.Checkpoint | None = self.portal.step(self._group, self._made.load, step, **_behind(things))
        return found

    def close(self) -> None:
        """Wait for the last write. Not collective.

        Raises:
            CheckpointError: it failed, and nobody has waited for it.
        """
        self.portal.end_steps(self._group)
        self.portal.call(self._made.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.portal.call(self._made.__aexit__, kind, error, trace)


def _behind(things: Mapping[str, Any]) -> dict[str, Any]:
    """Things with the training objects of the loop in the place of the portal's."""
    return {name: thing._made if isinstance(thing, _Training) else thing for name, thing in things.items()}


async def _awaited(saving: ddp.Saving) -> Path:
    return await saving
