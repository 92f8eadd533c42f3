"""Disks that are full, or fail: what a failed save wrote goes, the last whole checkpoint stays, and the next
save succeeds when there is room again."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import CheckpointError, GroupBroken
from aiodist.ddp import Checkpoints
from aiodist.ddp.checkpoint import folder
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.cluster import run_cluster
from tests.levels import COSTLY, MORE, few

CALLS = ("open", "mkdir", "write", "fsync", "rename")


def on_all(size: int, part: Callable[[ProcessGroup], Awaitable[Any]]) -> list[Any]:
    return asyncio.run(run_cluster(size, part))


def names(root: Path) -> list[str]:
    return sorted(one.name for one in root.iterdir())


class Disk:
    """The system calls on what lies in a folder, of which one fails.

    Args:
        root: the folder.

    Attributes:
        calls: how many there were, of this process.
        failed: the name of the one that failed; empty before.
        then: the name of another one that fails behind it, once; empty: none does.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._left = 0
        self._act: Callable[[], None] = lambda: None
        self.failed, self.calls, self.then = "", 0, ""

    def arm(self, number: int, act: Callable[[], None]) -> None:
        """Have something happen at the call of a number, from now on, counted from 1."""
        self._left, self._act, self.failed = number, act, ""

    def disarm(self) -> None:
        """Let all calls pass from now on."""
        self._left = 0

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Look at the calls of this process."""
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._watched(name, getattr(os, name)))
            yield

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **named: Any) -> Any:
            handle = named.get("dir_fd", named.get("src_dir_fd", first))
            if isinstance(handle, int):
                try:
                    at = os.readlink(f"/proc/self/fd/{handle}")
                except OSError:
                    at = ""
                if at == self._root or at.startswith(f"{self._root}/"):
                    self.calls += 1
                    self._left -= 1
                    if self.failed and self.then == name:
                        self.then = ""
                        raise OSError(errno.EIO, os.strerror(errno.EIO))
                    if not self._left:
                        self.failed = name
                        self._act()
            return real(first, *rest, **named)

        return call


def failing(code: int) -> Callable[[], None]:
    def act() -> None:
        raise OSError(code, os.strerror(code))

    return act


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("code", few([errno.ENOSPC, errno.EIO, errno.EDQUOT], [errno.ENOSPC], MORE))
def test_each_call_fails_once(tmp_path: Path, code: int) -> None:
    """On either rank: whichever comes to it."""
    root = tmp_path / "c"
    disk, hit = Disk(root), list[str]()

    async def part(pg: ProcessGroup, number: int) -> None:
        async with Checkpoints(pg, root, keep=2) as checkpoints:
            await (await checkpoints.save(1, x=np.arange(9)))  # type: ignore[misc]
            await pg.barrier()
            if pg.rank == 0:
                disk.arm(number, failing(code))
            await pg.barrier()
            try:
                await (await checkpoints.save(2, x=np.arange(9) * 2))  # type: ignore[misc]
                failed = None
            except CheckpointError as error:
                failed = error
            await pg.barrier()
            disk.disarm()
            await pg.barrier()
            if failed is not None:
                assert disk.failed
                if " list" not in str(failed):  # else nothing was begun
                    assert os.strerror(code) in str(failed)
                    assert "the next save tries again" in str(failed)
                    assert names(root) == ["000001-step-1"], (number, disk.failed)
                found = await checkpoints.load()
                assert found is not None and found["x"].tolist() == list(range(9))
            await pg.barrier()
            for step in (3, 4):
                await (await checkpoints.save(step, x=np.arange(9)))  # type: ignore[misc]
                await pg.barrier()
            assert await checkpoints.steps() == [3, 4]
            await pg.barrier()

    with disk.patched():
        for number in itertools.count(1):
            shutil.rmtree(root, ignore_errors=True)
            on_all(2, partial(part, number=number))
            assert [one.partition("-")[2] for one in names(root)] == ["step-3", "step-4"]
            if not disk.failed:
                break
            hit.append(disk.failed)
    assert set(hit) == set(CALLS) and len(hit) > 20


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(600)
def test_what_was_written_cannot_be_removed_either(tmp_path: Path) -> None:
    """A save that has failed is none, though its folder cannot be renamed away: the older one is the last."""
    root = tmp_path / "c"
    disk, hit = Disk(root), set[str]()

    async def part(pg: ProcessGroup, number: int) -> None:
        async with Checkpoints(pg, root, keep=2) as checkpoints:
            await (await checkpoints.save(1, x=np.arange(9)))  # type: ignore[misc]
            await pg.barrier()
            if pg.rank == 0:
                disk.arm(number, failing(errno.EIO))
                disk.then = "rename"
            await pg.barrier()
            try:
                await (await checkpoints.save(2, x=np.arange(9) * 2))  # type: ignore[misc]
                step = 2
            except CheckpointError:
                step = 1
            await pg.barrier()
            disk.disarm()
            disk.then = ""
            await pg.barrier()
            found = await checkpoints.load()
            assert found is not None and found["x"].tolist() == [step * item for item in range(9)]
            assert await checkpoints.steps() == [1, 2][:step]

    with disk.patched():
        for number in itertools.count(1):
            shutil.rmtree(root, ignore_errors=True)
            on_all(2, partial(part, number=number))
            if not disk.failed:
                break
            hit.add(disk.failed)
    assert hit == set(CALLS)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("number", few([1, 3, 5, 8], [3], MORE))
@spmd(world_size=3, exits={1: -9})
async def test_a_rank_that_dies_in_it(pg: ProcessGroup, tmp_path: Path, number: int) -> None:
    root, me = tmp_path / "c", pg.rank
    disk = Disk(root)
    with disk.patched():
        checkpoints = Checkpoints(pg, root)
        await (await checkpoints.save(1, x=np.arange(9)))  # type: ignore[misc]
        await pg.barrier()
        if me == 1:
            disk.arm(number, killed)
        with pytest.raises(GroupBroken):
            await (await checkpoints.save(2, x=np.arange(9)))  # type: ignore[misc]
        pg = await pg.rebuild()
        assert await checkpoints.steps() == [1]
        await (await checkpoints.save(3, x=np.arange(9)))  # type: ignore[misc]
        await pg.barrier()
        assert names(root) == ["000001-step-1", "000003-step-3"]
        await checkpoints.aclose()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("tenth", few(range(11), [7], MORE))
@spmd(world_size=3, exits={0: -9})
async def test_the_rank_that_writes_the_index_dies_in_it(
    pg: ProcessGroup, tmp_path: Path, tenth: int
) -> None:
    """Then nobody may remove what it might have finished, until the next save: it never will.

    It dies at its first call, its last, or so many tenths of the way between.
    """
    root, me = tmp_path / "c", pg.rank
    disk = Disk(root)
    with disk.patched():
        checkpoints = Checkpoints(pg, root, keep=9)
        for step in (1, 2):
            before = disk.calls
            await (await checkpoints.save(step, x=np.arange(9)))  # type: ignore[misc]
            await pg.barrier()
        if me == 0:
            disk.arm(1 + (disk.calls - before - 1) * tenth // 10, killed)
        try:
            await (await checkpoints.save(3, x=np.arange(9)))  # type: ignore[misc]
            await pg.barrier()
            raise AssertionError("rank 0 lives")
        except GroupBroken:
            pg = await pg.rebuild()
        whole = await checkpoints.steps()
        await (await checkpoints.save(4, x=np.arange(9)))  # type: ignore[misc]
        await pg.barrier()
        assert whole in ([1, 2], [1, 2, 3])
        assert [one.partition("-")[2] for one in names(root)] == [f"step-{step}" for step in (*whole, 4)]
        await checkpoints.aclose()


def test_what_dead_processes_left_is_removed_by_the_next(tmp_path: Path) -> None:
    async def save(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            await (await checkpoints.save(1, x=1))  # type: ignore[misc]

    on_all(2, save)
    for name in ("000002-step-2", "000003-step-3", ".000004-step-4.gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-00000.safetensors").write_bytes(b"cut")
        (tmp_path / name / ".index.json.00c0ffee").write_bytes(b"cut")
    on_all(2, save)
    assert names(tmp_path) == ["000001-step-1", "000004-step-1"]


@contextmanager
def small(place: Path) -> Iterator[None]:
    """A file system of 400 KiB."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounts a file system, which needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_full_in_earnest(tmp_path: Path) -> None:
    """Beside the last whole checkpoint another one has room, but not beside what else is there."""
    place = tmp_path / "small"
    with small(place):
        filler = place / "filler"

        async def part(pg: ProcessGroup) -> None:
            values = np.random.default_rng(7).integers(0, 255, 120 << 10, np.uint8)
            async with Checkpoints(pg, place / "c", keep=1) as checkpoints:
                for step in (1, 2):
                    await (await checkpoints.save(step, x=values))  # type: ignore[misc]
                    await pg.barrier()
                if pg.rank == 0:
                    filler.write_bytes(bytes(180 << 10))
                await pg.barrier()
                for step in (3, 4):
                    with pytest.raises(
                        CheckpointError, match=r"No space left.*Make room in .*/c, or pass a smaller keep="
                    ):
                        await (await checkpoints.save(step, x=values))  # type: ignore[misc]
                    await pg.barrier()
                    assert names(place / "c") == ["000002-step-2"]
                    found = await checkpoints.load()
                    assert found is not None and found.step == 2 and (found["x"] == values).all()
                await pg.barrier()
                if pg.rank == 0:
                    filler.unlink()
                await pg.barrier()
                await (await checkpoints.save(5, x=values))  # type: ignore[misc]
                await pg.barrier()
                assert await checkpoints.steps() == [5]

        on_all(2, part)
        assert len(names(place / "c")) == 1


def test_a_late_writer_makes_nothing_whole(tmp_path: Path) -> None:
    """One that was stopped while it wrote the index, and goes on when the others have removed it."""
    path = tmp_path / "000001-step-1"
    folder.begin(path)
    real = os.rename

    def late(*args: Any, **named: Any) -> None:
        os.rename = real
        folder.discard(path)
        real(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", late)
        with pytest.raises(OSError):
            folder.finish(path, {"step": 1, "files": [], "sizes": [], "tree": ["dict", []]})
    assert folder.listed(tmp_path) == []
