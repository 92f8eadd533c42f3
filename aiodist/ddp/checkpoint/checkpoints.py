"""Saving and loading checkpoints by all ranks of a group, while the program goes on."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import threading
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from aiodist.base.environment.files import Folder
from aiodist.base.errors import (
    AiodistError,
    CheckpointError,
    Evicted,
    GroupBroken,
    GroupClosed,
    QuorumLost,
    UsageError,
    shown,
)
from aiodist.base.sanitize import one_line
from aiodist.ddp.checkpoint.files import Reader, write
from aiodist.ddp.checkpoint.folder import (
    begin,
    clean,
    discard,
    finish,
    index_of,
    is_whole,
    listed,
    name_of,
    next_number,
    sweep,
)
from aiodist.ddp.checkpoint.index import file_of
from aiodist.ddp.checkpoint.tree import merged, nodes_of, opened, snapshot, unique
from aiodist.group import ProcessGroup
from aiodist.group.arguments import at_least_1, integer, one_of
from aiodist.group.together import together

logger = logging.getLogger("aiodist.ddp.checkpoint")

Array = npt.NDArray[Any]
T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Saving:
    """A checkpoint that is being written. `await` returns its folder when it is whole, on the disk.

    Attributes:
        step: that was saved.

    Raises:
        CheckpointError: from the await: a rank could not write, or ranks had other values.
        GroupBroken: from the await: a member died before it was whole. Older checkpoints are as they were.
    """

    def __init__(self, step: int, task: asyncio.Task[Path]) -> None:
        self.step = step
        self._awaits = 0  # awaits that are told of its end, or will be
        self._task = task
        task.add_done_callback(_heard)

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._task.done()

    def failure(self) -> BaseException | None:
        """The failure of a write that nobody was told of. The end of the group is none: it is told by the
        group."""
        if self._awaits or not self._task.done() or self._task.cancelled():
            return None
        error = self._task.exception()
        if isinstance(error, GroupBroken | GroupClosed):
            return None
        return error

    def report(self) -> None:
        """Note that `failure` is raised now."""
        self._awaits += 1

    async def ended(self) -> None:
        """Wait until it is over, well or not."""
        await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Have its task end."""
        self._task.cancel()

    def __await__(self) -> Generator[Any, None, Path]:
        self._awaits += 1
        try:
            return (yield from asyncio.shield(self._task).__await__())
        except (asyncio.CancelledError, GeneratorExit):  # `wait_for` gave up
            self._awaits -= 1
            raise


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was loaded: by name, the things that it holds.

    Attributes:
        step: that was saved.
        path: of its folder.
        size: how many ranks wrote it.
    """

    step: int
    path: Path
    size: int
    _things: Mapping[str, Any]
    _checksum: int  # of its index, which has those of all arrays

    def __getitem__(self, name: str) -> Any:
        """The thing that was saved by a name."""
        if name not in self._things:
            raise CheckpointError(f"{self.path} has no {name!r}; it has {', '.join(sorted(self._things))}")
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things


class Checkpoints:
    """A folder of checkpoints that all ranks of a group write and read together::

        async with dist.Checkpoints(pg, "checkpoints", keep=3) as checkpoints:
            await checkpoints.load(optimizer=optimizer)
            await optimizer
            while optimizer.steps < steps:
                ...
                if optimizer.steps % 100 == 0:
                    await checkpoints.save(optimizer.steps, optimizer=optimizer, epoch=epoch)

    `save` copies what is to be saved and returns; a thread writes it. Each rank writes its part: of a
    `ShardedOptimizer` its share, of an array that all ranks have alike an even part. An index is written
    last, so that a checkpoint is whole or does not exist. Any number of ranks can load it.

    The folder must be one that all ranks see, and of one job. Files are in the format safetensors.

    Args:
        pg: the process group; after a change of members, the epoch that is now.
        folder: made where it is not there.
        keep: how many checkpoints stay; older ones are removed when a new one is whole.
        when_busy: what `save` does while some rank still writes the checkpoint before: 'wait' for it, or
            'skip' this one.

    Raises:
        UsageError: an argument has no meaning.
    """

    def __init__(
        self, pg: ProcessGroup, folder: str | Path, *, keep: int = 3, when_busy: str = "wait"
    ) -> None:
        self._first = pg
        self._root = Path(folder)
        self._keep = at_least_1(keep, "keep")
        self._skips = one_of(when_busy, ("wait", "skip"), "when_busy") == "skip"
        self._turn = (
            asyncio.Lock()
        )  # of `save`, `load` and `aclose`: one at a time, in the order of the calls
        self._last: Saving | None = None
        self._group: tuple[ProcessGroup, ProcessGroup] | None = None  # of which, and that of the writers
        self._stop = threading.Event()
        self._threads: set[asyncio.Future[Any]] = set()
        self._number = 0  # of the last one that this process began as rank 0
        self._copies: dict[str, Array] = {}  # memory of the last snapshot, for the next one

    @property
    def _pg(self) -> ProcessGroup:
        """The present epoch's group."""
        found: ProcessGroup = self._first._core.lineage.latest.owner
        return found

    async def _thread(self, job: Callable[[], T]) -> T:
        """Do a job in a thread. Cancelling does not wait for it; `aclose` does."""
        running = asyncio.get_running_loop().run_in_executor(None, job)
        self._threads.add(running)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._threads.discard(running)
        if not running.cancelled():
            running.exception()  # whoever awaits it raises it; after a cancellation nobody does

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────

    async def save(self, step: int, /, **things: Any) -> Saving | None:
        """Copy what is to be saved, and begin to write it. All ranks call it, as a collective.

        Leave what is saved as it is until this returns. Several calls at once, of `load`, too, are carried
        out one after the other, in their order, which must be the same on all ranks. A cancelled save goes on
        until it has copied, also where its turn has not come yet, before it is cancelled: the other ranks
        count on it.

        Args:
            step: a number for it, not negative; the same on all ranks.
            **things: by name: numbers, texts, arrays, lists and dicts of them, or anything with a
                `state_dict` (`ShardedOptimizer`, `DiLoCo`, torch's modules and optimisers). Arrays are the
                same on all ranks; `PerRank` for others.

        Returns:
            what is awaitable for "on the disk"; None where it was skipped.

        Raises:
            UsageError: something cannot be saved, or ranks save other things.
            CheckpointError: the write before this one failed, and nobody has awaited it.
            Evicted, QuorumLost: this process must not go on. Other losses of members are raised by what this
                returns: the next checkpoint may be well.
        """
        number = integer(step, "step")
        if not 0 <= number < 1 << 63:
            raise UsageError(f"step must be at least 0 and below 2**63, got {shown(number)}")
        if not things:
            raise UsageError("there is nothing to save", hint="Pass it by name: save(step, weights=weights)")
        trees = {
            name: thing.state_dict() if callable(getattr(thing, "state_dict", None)) else thing
            for name, thing in things.items()
        }
        before = {name: (thing, _changes_of(thing)) for name, thing in things.items()}
        for name, tree in trees.items():
            snapshot(tree, name, lambda _, array: array)  # what cannot be saved is refused before anything
        return await together(self._save(number, trees, before))

    async def _save(
        self, number: int, trees: Mapping[str, Any], before: Mapping[str, tuple[Any, int]]
    ) -> Saving | None:
        """Begin a checkpoint when it is this call's turn: see `save`."""
        async with self._turn:
            if self._last is not None and not self._skips:
                await self._last.ended()
            return await self._begin(number, trees, before)

    async def _begin(
        self, number: int, trees: Mapping[str, Any], before: Mapping[str, tuple[Any, int]]
    ) -> Saving | None:
        """Agree with the others that a checkpoint begins, copy what it holds, and begin to write it.

        Args:
            before: things and their changes (`_changes_of`), as the trees were taken.
        """
        pg = self._pg
        try:
            path = await self._agree(pg, number, sorted(trees))
        except GroupBroken as error:
            if isinstance(error, Evicted | QuorumLost) or pg._core.family.regroup is None:
                raise
            logger.warning("the checkpoint of step %d was not taken: %s", number, error)
            return Saving(number, asyncio.create_task(_failed(error)))
        if path is None:
            return None
        copied: dict[str, Any] | Exception
        try:
            copied = await self._thread(partial(self._copied, trees))
            for name, (thing, changes) in before.items():
                if _changes_of(thing) != changes:
                    raise CheckpointError(
                        f"{name} was changed by a step while it was copied",
                        hint="Await save() before the next step",
                    )
        except Exception as error:  # of memory, say; the others are told when they write
            copied = error
        if self._stop.is_set():  # meanwhile
            self._leave_group()
            raise CheckpointError(f"the checkpoint of step {number} was not taken: its Checkpoints was left")
        task = asyncio.create_task(self._write(pg, path, number, copied))
        self._last = Saving(number, task)
        return self._last

    async def _agree(self, pg: ProcessGroup, step: int, names: list[str]) -> Path | None:
        """The new checkpoint's folder, and the writers' group made; None where it is skipped."""
        last = self._last
        busy = last is not None and not last.done()
        failure = None if last is None else last.failure()
        number, unlisted = 0, None
        if pg.rank == 0:
            try:
                number = await self._thread(partial(self._next, not busy))
                self._number = max(self._number, number)
            except Exception as error:  # whatever it is: the others are told
                unlisted = error
        usable = self._group is not None and self._group[0] is pg and self._group[1]._core.error is None
        digest = zlib.crc32("\n".join(names).encode())
        flags = [busy, failure is not None, not usable, unlisted is not None]
        row = np.array([step, digest, number, *flags], np.int64)
        rows = await self._rows(pg, row)
        if last is not None and failure is not None:
            last.report()
            raise failure
        if unlisted is not None:
            raise CheckpointError(f"{self._root} cannot be listed: {_described(unlisted)}") from unlisted
        for member, other in enumerate(rows):
            if other[6]:
                raise CheckpointError(f"rank {pg.ranks[member]} could not list {self._root}")
            if other[0] != rows[0][0]:
                raise UsageError(
                    f"rank {pg.ranks[member]} saves step {other[0]}, and rank {pg.ranks[0]} step {rows[0][0]}"
                )
            if other[1] != rows[0][1]:
                raise UsageError(f"rank {pg.ranks[member]} saves other things than rank {pg.ranks[0]}")
            if other[4]:
                raise CheckpointError(f"rank {pg.ranks[member]} was not told that the last write had failed")
        if rows[:, 3].any():
            logger.info("the checkpoint of step %d is skipped: the one before is still being written", step)
            return None
        if rows[:, 5].any():  # not in the task that writes: an exception must not leave the others waiting
            made = await pg.new_group(name="checkpoints")
            assert made is not None
            self._group = (pg, made)
        return self._root / name_of(int(rows[0][2]), step)

    async def _rows(self, pg: ProcessGroup, row: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows of all members. A loss meanwhile is raised on all of them, and none of them begins."""
        try:
            rows, well = await pg.all_gather(row), True
        except GroupBroken as error:
            if pg._core.family.regroup is None or isinstance(error, Evicted | QuorumLost):
                raise
            rows, well, broken = row[None], False, error
        if pg._core.family.regroup is not None and not await pg.agree(well):
            raise GroupBroken("a member was lost when the checkpoint began") if well else broken
        return rows

    def _next(self, sweeps: bool) -> int:
        """The number of the next checkpoint; and make room for it, by what was never finished.

        Args:
            sweeps: this process is not writing one.
        """
        number = max(next_number(self._root), self._number + 1)  # none that a late writer knows
        if sweeps:
            sweep(self._root)
        return number

    def _copied(self, trees: Mapping[str, Any]) -> dict[str, Any]:
        """Copies of all that is saved, in the memory of the last ones."""
        before, self._copies = self._copies, {}

        def take(path: str, array: Array) -> Array:
            path = unique(path, self._copies)
            target = before.get(path)
            if target is None or target.shape != array.shape or target.dtype != array.dtype:
                target = np.empty(array.shape, array.dtype)
            np.copyto(target, array)
            self._copies[path] = target
            return target

        return {name: snapshot(tree, name, take) for name, tree in trees.items()}

    async def _write(
        self, pg: ProcessGroup, path: Path, step: int, copied: dict[str, Any] | Exception
    ) -> Path:
        """Write this rank's part; rank 0 then writes the index. What was written is removed, if it fails."""
        assert self._group is not None
        group = self._group[1]
        part: list[Any] = []
        try:
            if isinstance(copied, Exception):
                raise copied
            part = await self._thread(partial(self._put, path, copied, group.rank, group.size))
        except Exception as error:  # whatever it is: the others are told
            failure = f"rank {pg.ranks[group.rank]} could not write: {_described(error)}"
            part = [{"failure": failure, "hint": self._advice(error)}]
        outcome: dict[str, str] = {}
        if group.rank == 0:
            outcome = await self._finished(group, path, step, part)
        else:
            await group.gather_object(part, 0)
        outcome = await group.broadcast_object(outcome, 0)
        if outcome:  # so rank 0 has not finished it, and never will
            await self._thread(partial(_remove_part, path, group.rank))
            raise CheckpointError(
                f"the checkpoint of step {step} was not written: {outcome['failure']}", hint=outcome["hint"]
            )
        if group.rank == 0:
            try:
                await self._thread(partial(clean, self._root, self._keep))
            except OSError as error:
                logger.warning("old checkpoints could not be removed: %s", error)
        return path

    async def _finished(self, group: ProcessGroup, path: Path, step: int, part: list[Any]) -> dict[str, str]:
        """Rank 0: write the index when all have written → {}; else what has failed, and what to do, when all
        that was written is removed. (The others cannot know whether rank 0 finishes it, where it is lost.)"""
        outcome: dict[str, str] = {}
        whole = False
        try:
            parts = await group.gather_object(part, 0)
            assert parts is not None
            outcome = next((one[0] for one in parts if len(one) == 1), {})
            if not outcome:
                try:
                    await self._thread(partial(_end, path, step, parts))
                    whole = True
                except Exception as error:  # whatever it is: the others are told
                    outcome = {"failure": str(error) or type(error).__name__, "hint": self._advice(error)}
        finally:
            if not whole:
                await self._thread(partial(_discard, path))
        return outcome

    def _advice(self, error: Exception) -> str:
        """The advice for a write that failed."""
        if isinstance(error, AiodistError) or not isinstance(error, OSError):
            return ""
        if error.errno in _FULL:
            return f"Make room in {self._root}, or pass a smaller keep=; the next save tries again"
        return f"See to {self._root} and its disk; the next save tries again, older ones are as they were"

    def _put(self, path: Path, copied: dict[str, Any], rank: int, size: int) -> list[Any]:
        """Write this rank's file → its node, as JSON, and the bytes of the file."""
        begin(path)
        out: dict[str, Array] = {}
        node = nodes_of(copied, "", rank, size, out)
        text = json.dumps(node)  # what JSON cannot carry fails here, where the others are told
        return [text, write(path / file_of(rank), out.items(), self._stop)]

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────

    async def steps(self) -> list[int]:
        """The steps of the checkpoints that are whole, in the order in which they were written."""
        return [one.step for one in await self._thread(partial(listed, self._root)) if one.whole]

    async def load(self, step: int | None = None, /, **things: Any) -> Checkpoint | None:
        """Load a checkpoint on all ranks; all call it, as a collective. A cancelled load goes on to its end
        before it is cancelled, also where its turn has not come yet: the other ranks count on it, and a
        thread may be giving `things` their values.

        Args:
            step: that was saved; None: the last one that was written.
            **things: by the names of `save`: what has a `load_state_dict` takes what is its own. All else is
                in the result.

        Returns:
            the checkpoint; None where `step` is None and there is none.

        Raises:
            UsageError: `step` is no integer; or, on all ranks, it is not the same on all of them.
            CheckpointError: it is damaged, is not there, is of other things, or is not the same one on all
                ranks, whose folders differ. All ranks raise it, and `things` may have been loaded in part.
            GroupBroken: a member was lost. `things` may have been loaded, on some ranks or on all: load
                again.
        """
        number = None if step is None else integer(step, "step")
        return await together(self._in_turn(number, things))

    async def _in_turn(self, step: int | None, things: Mapping[str, Any]) -> Checkpoint | None:
        """Load a checkpoint when it is this call's turn: see `load`."""
        async with self._turn:
            return await self._load(step, things)

    async def _load(self, step: int | None, things: Mapping[str, Any]) -> Checkpoint | None:
        """Load a checkpoint, all of it: see `load`."""
        pg = self._pg
        asked = await pg.all_gather_object("the last one" if step is None else f"step {step}")
        for member, other in enumerate(asked):
            if other != asked[0]:
                raise UsageError(
                    f"rank {pg.ranks[member]} loads {other}, and rank {pg.ranks[0]} {asked[0]}",
                    hint="Pass the same step on all ranks",
                )
        chosen = await self._chosen(pg, step)
        if not chosen and step is None:
            return None
        if not chosen:
            raise CheckpointError(f"{self._root} has no checkpoint of step {step}")
        while True:
            found, cause, path = None, None, self._root / chosen
            try:
                found = await self._thread(partial(_read, path, pg.rank, pg.size, things))
            except Exception as error:  # whatever it is: the others are told
                cause = error
            gone = cause is not None and not is_whole(path)
            same = 0 if found is None else found._checksum
            errors = await pg.all_gather_object(["" if cause is None else _described(cause), gone, same])
            if not any(failure for failure, _, _ in errors):
                _check_same(pg, path, [checksum for _, _, checksum in errors])
                return found
            before = chosen
            if step is None and any(one for _, one, _ in errors):
                chosen = await self._chosen(pg, None)  # another job has removed it: it has a later one
            if chosen in ("", before):
                break
        if cause is not None:
            raise CheckpointError(_described(cause)) from cause
        member = next(at for at, (failure, _, _) in enumerate(errors) if failure)
        raise CheckpointError(f"rank {pg.ranks[member]} could not load: {errors[member][0]}")

    async def _chosen(self, pg: ProcessGroup, step: int | None) -> str:
        """The name of the folder that is loaded, as rank 0 sees it; '' where there is none.

        Raises:
            CheckpointError: rank 0 could not list the folder.
        """
        chosen, error = "", ""
        if pg.rank == 0:
            try:
                whole = [one for one in await self._thread(partial(listed, self._root)) if one.whole]
                fits = [one for one in whole if step is None or one.step == step]
                chosen = fits[-1].path.name if fits else ""
            except Exception as failed:  # whatever it is: the others are told
                error = f"rank {pg.ranks[0]} could not list {self._root}: {_described(failed)}"
        found: list[str] = await pg.broadcast_object([chosen, error], 0)
        if found[1]:
            raise CheckpointError(found[1])
        return found[0]

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    async def aclose(self) -> None:
        """Wait for the calls before it, and for the last write. Not collective.

        Raises:
            CheckpointError: it failed, and nobody has awaited it.
        """
        try:
            await asyncio.sleep(0)  # calls that were made just before it are in the queue then
            async with self._turn:
                if self._last is not None:
                    await self._last.ended()
                failure = None if self._last is None else self._last.failure()
                await self._close_group()
        except asyncio.CancelledError:
            await self._cancelled()
            raise
        if self._last is not None and failure is not None:
            self._last.report()
            raise failure

    async def _cancelled(self) -> None:
        """Stop writing: what was begun does not exist. It takes as long as writing a few MiB.

        The others are told: they may wait for this rank's part.
        """
        self._stop.set()
        if self._last is not None:
            self._last.cancel()
        self._leave_group()
        if self._last is not None:
            await self._last.ended()
        while self._threads:
            await asyncio.wait(self._threads)

    def _leave_group(self) -> None:
        if self._group is not None:
            group, self._group = self._group[1], None
            group.abort("a rank has left its Checkpoints by an exception")

    async def _close_group(self) -> None:
        if self._group is not None:
            group, self._group = self._group[1], None
            if group._core.error is None:
                await group.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            await self._cancelled()


def _end(path: Path, step: int, parts: list[Any]) -> None:
    """Write the index of all ranks' parts.

    Raises:
        CheckpointError: a part is not to be seen here, or ranks had other values.
    """
    for rank, (_, nbytes) in enumerate(parts):
        part = path / file_of(rank)
        if not part.is_file() or part.stat().st_size != nbytes:
            raise CheckpointError(
                f"rank 0 does not see {part}, which rank {rank} has written",
                hint="Pass a folder that all ranks see, as an absolute path",
            )
    finish(
        path,
        {
            "step": step,
            "files": [file_of(rank) for rank in range(len(parts))],
            "sizes": [nbytes for _, nbytes in parts],
            "tree": merged([json.loads(node) for node, _ in parts]),
        },
    )


def _discard(path: Path) -> None:
    """Remove what is left of a checkpoint that is not whole."""
    try:
        discard(path)
    except OSError as error:
        logger.warning("what is left of %s could not be removed yet: %s", path, one_line(str(error)))


def _remove_part(path: Path, rank: int) -> None:
    """Remove this rank's part of a checkpoint that failed, where rank 0 did not see it."""
    with suppress(OSError), Folder.named(path.parent) as root:
        with root.folder(path.name) as folder:
            folder.remove(file_of(rank))
        root.remove_folder(path.name)


def _read(path: Path, rank: int, size: int, things: Mapping[str, Any]) -> Checkpoint:
    """Read a checkpoint, and give things what is theirs."""
    index = index_of(path)
    reader = Reader(path, index["files"], index["sizes"])
    saved = dict(index["tree"][1])
    found = Checkpoint(index["step"], path, len(index["files"]), saved, index["crc"])
    for name in things:
        found[name]  # it says what is not there
    try:
        trees = {name: opened(node, rank, size, reader) for name, node in saved.items()}
    except CheckpointError:
        raise
    except Exception as error:  # memory, say
        raise CheckpointError(f"{path} cannot be read: {_described(error)}") from error
    for name, thing in things.items():
        if not callable(getattr(thing, "load_state_dict", None)):
            raise UsageError(
                f"{name} has no load_state_dict", hint=f"Leave it out, and take checkpoint[{name!r}]"
            )
        try:
            thing.load_state_dict(trees[name])
        except AiodistError:
            raise
        except Exception as error:  # whatever a class of others raises
            raise CheckpointError(f"{name} in {path} is of another model: {_described(error)}") from error
    return replace(found, _things=trees)


def _check_same(pg: ProcessGroup, path: Path, checksums: Sequence[int]) -> None:
    """Refuse what ranks have read in other folders: each of them may have a checkpoint of this name.

    Args:
        path: of what was read here.
        checksums: of its index, by member.
    """
    for member, checksum in enumerate(checksums):
        if checksum != checksums[0]:
            raise CheckpointError(
                f"{path} is another checkpoint on rank {pg.ranks[member]} than on rank {pg.ranks[0]}",
                hint="Pass a folder that all ranks see, as an absolute path",
            )


def _changes_of(thing: Any) -> int:
    """How often what is saved has changed, as far as it says so: `ShardedOptimizer` does, whose arrays are
    copied while other tasks run."""
    found = getattr(thing, "_changes", 0)
    return found if isinstance(found, int) else 0


def _described(error: Exception) -> str:
    """The text of an error, as one line; its kind where it has none."""
    return (str(error) if isinstance(error, AiodistError) else one_line(str(error))) or type(error).__name__


async def _failed(error: GroupBroken) -> Path:
    raise error


def _heard(task: asyncio.Task[Path]) -> None:
    """Log the end of a save that failed: nobody may ask for it any more."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, GroupBroken | GroupClosed):
        logger.warning("a checkpoint is not whole: %s", error)
    elif error is not None:
        logger.error("%s", error)
