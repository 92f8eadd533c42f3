"""A backend that another project brings (tests/third_party), installed as a package, on real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends import registry
from aiodist.backends.choice import parse
from aiodist.backends.foreign import Engine
from aiodist.group import ProcessGroup
from aiodist.testing import check_backend, run_cluster
from aiodist.testing.outcome import check
from aiodist.testing.ranks import launch
from tests.levels import COSTLY, few
from tests.third_party.aiodist_unix import UnixEngine

PROJECT = Path(__file__).parents[1] / "third_party"
PAGE = Path(__file__).parents[2] / "docs" / "write-a-backend.md"


def install(project: Path, target: Path) -> None:
    """Do what an installer does with a project of one module, without one and without a network."""
    settings = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    module = settings["name"].replace("-", "_")
    info = target / f"{module}-{settings['version']}.dist-info"
    info.mkdir(parents=True)
    shutil.copy(project / f"{module}.py", target)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {settings['name']}\nVersion: {settings['version']}\n"
    )
    lines = []
    for group, points in settings["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package in it, and nothing else."""
    target = tmp_path_factory.mktemp("site")
    install(PROJECT, target)
    return target


def run(
    installed: Path,
    function: Callable[..., Any],
    size: int,
    exits: Mapping[int, int] | None = None,
    **arguments: Any,
) -> None:
    """Run a function of this file on `size` processes that find the package."""
    worker = ["-m", "aiodist.testing.worker", __file__, function.__name__, json.dumps(arguments), "unix"]
    outcomes = asyncio.run(launch(worker, size, timeout=120, env=found(installed)))
    check(outcomes, exits or {})


def found(installed: Path) -> dict[str, str]:
    """What makes processes find the package."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))}


async def does_everything(pg: ProcessGroup) -> None:
    """All checks of a backend, in the world and in a part of it."""
    assert (pg.backend, dist.get_backend()) == ("unix", "unix")
    await check_backend(pg)
    pair = await pg.new_group(sorted({0, pg.size - 1}))
    if pair is not None:
        assert pair.backend == "unix"
        await check_backend(pair, seed=7, length=20)


async def overtakes(pg: ProcessGroup) -> None:
    """A small message is ready to go while a large one before it is still being staged, in a thread."""
    large, small = np.arange(4_000_000).reshape(2000, 2000)[:, ::2], np.arange(5) + 100
    for _ in range(3):
        if pg.rank == 0:
            works = [pg.send(large, 1, 0, async_op=True), pg.send(small, 1, 1, async_op=True)]
            await asyncio.gather(*works)
        else:
            first, second = np.zeros((2000, 1000), np.int64), np.zeros(5, np.int64)
            await asyncio.gather(pg.recv(first, 0, 0), pg.recv(second, None, 1))
            assert np.array_equal(first, large)
            assert np.array_equal(second, small)


async def disagrees(pg: ProcessGroup) -> None:
    """One rank calls something else: nobody gets a result."""
    mine = np.arange(4.0) + pg.rank
    assert np.array_equal(await pg.all_reduce(mine), np.arange(4.0) * 3 + 3)
    with pytest.raises(dist.CollectiveMismatch) as caught:
        await pg.all_reduce(np.arange(3.0 if pg.rank == 1 else 4.0))
    assert set(caught.value.said) == {0, 1, 2}
    assert "float64[3]" in caught.value.said[1]


async def dies(pg: ProcessGroup, messages: bool) -> None:
    """A rank is killed while others wait for it; they are told who, and go on without it."""
    await pg.barrier()
    if pg.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    big = np.full(1_000_000, pg.rank)
    with pytest.raises(dist.PeerLost) as caught:
        if messages:
            await (pg.send(big, 1) if pg.rank == 0 else pg.recv(big, 1))
        else:
            await pg.all_reduce(big)
    assert caught.value.ranks == (1,)
    pg = await pg.rebuild()
    assert (pg.size, pg.backend) == (2, "unix"), pg
    assert np.array_equal(await pg.all_reduce(np.arange(3) + pg.rank), np.arange(3) * 2 + 1)


async def aborts(pg: ProcessGroup) -> None:
    """A member ends the group while the engine moves data: buffers come back, and the reason arrives."""
    big = np.arange(2_000_000) + pg.rank
    works = [pg.all_reduce(big.copy(), async_op=True) for _ in range(4)]
    if pg.rank == 0:
        pg.abort("enough")
    for work in works:
        with pytest.raises(dist.GroupAborted, match="enough"):
            await work


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("size", few([1, 2, 4], [2]))
def test_it_does_all_that_a_backend_must(installed: Path, size: int) -> None:
    run(installed, does_everything, size)


@pytest.mark.slow(COSTLY)
def test_messages_without_numbers_keep_their_order(installed: Path) -> None:
    run(installed, overtakes, 2)


@pytest.mark.slow(COSTLY)
def test_ranks_that_disagree_are_told_what_each_said(installed: Path) -> None:
    run(installed, disagrees, 3)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("messages", few([False, True], [False]))
def test_a_killed_rank_is_named_and_the_others_go_on(installed: Path, messages: bool) -> None:
    run(installed, dies, 3, {1: -signal.SIGKILL}, messages=messages)


@pytest.mark.slow(COSTLY)
def test_it_can_be_stopped_while_it_moves_data(installed: Path) -> None:
    run(installed, aborts, 3)


async def test_meeting_that_fails_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})

    class Half(UnixEngine):
        async def open(self) -> None:
            if self.setup.rank == 2:
                await self.setup.gather(b"/nowhere")
                raise OSError("no room for a socket")
            await super().open()

    async def main(pg: ProcessGroup) -> None:
        raise AssertionError("there is no group")

    dist.register_backend("half", Half)
    failed: list[Any] = await run_cluster(3, main, backend="half", return_exceptions=True)
    assert all(isinstance(error, OSError | dist.AiodistError) for error in failed), failed
    assert "no room for a socket" in str(failed)


def test_nobody_but_the_package_brings_it(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dist.UsageError, match="'unix' is not known"):
        parse("unix")
    monkeypatch.syspath_prepend(str(installed))
    try:
        (point,) = entry_points(group="aiodist.backends", name="unix")
        assert point == EntryPoint("unix", "aiodist_unix:UnixEngine", "aiodist.backends")
        choice = parse("Unix").check()
        assert (choice.name, choice.host, set(choice.engines)) == ("unix", False, {"cpu"})
        elsewhere = [{**choice.card(), "told": {"cpu": name}} for name in (b"here", b"there")]
        with pytest.raises(dist.BackendUnavailable, match=r"'unix' .*: the ranks are on several hosts"):
            choice.common_to(elsewhere)
    finally:
        sys.modules.pop("aiodist_unix", None)


# ── docs/write-a-backend.md ──────────────────────────────────────────────────────────────────────────


def shown(language: str) -> list[str]:
    """The page's blocks in a language."""
    return re.findall(rf"^```{language} elsewhere\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_page_shows_this_very_project() -> None:
    assert shown("python")[0] == (PROJECT / "aiodist_unix.py").read_text()
    assert shown("toml") == [(PROJECT / "pyproject.toml").read_text()]


def test_page_names_every_flag() -> None:
    flags = {name for name, kind in Engine.__annotations__.items() if "ClassVar" in kind}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == flags


@pytest.mark.slow(COSTLY)
def test_test_on_the_page_passes(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "test_unix.py"
    path.write_text(shown("python")[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    env = os.environ | found(installed)
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout
    assert "3 passed" in ran.stdout


def test_registration_on_the_page(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.syspath_prepend(str(installed))
    names: dict[str, Any] = {}
    try:
        exec(compile(shown("python")[2], str(PAGE), "exec"), names)
    finally:
        sys.modules.pop("aiodist_unix", None)
    assert parse("unix").engines == {"cpu": names["UnixEngine"]}
