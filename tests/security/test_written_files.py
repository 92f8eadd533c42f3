"""Files that aiodist writes where others may write, too: never through a link, never into another's file.

A project's folder, with the rights of its group, is such a place, and so is /tmp. The other user is real:
links and files are given away, or made by a process of that user's. Both need root.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiodist.base.environment.files import Folder, UntrustedError, make_folders, write_file
from aiodist.base.errors import AiodistError, CheckpointError, UsageError
from aiodist.ddp import Checkpoints
from aiodist.ddp.checkpoint import folder as checkpoint_folder
from aiodist.group import ProcessGroup
from aiodist.launch.worker.logs import LogFiles
from aiodist.testing.cluster import run_cluster

OTHER = 4711
TEXT = b"nobody else's business"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux only"),
    pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which needs root"),
]


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A private file of this user's."""
    path = tmp_path / "precious"
    path.write_bytes(TEXT)
    path.chmod(0o600)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A project's folder: its group may write, and new folders in it are the group's, too."""
    path = tmp_path / "project"
    path.mkdir()
    os.chown(path, 0, OTHER)
    path.chmod(0o2775)
    before = os.umask(0o002)
    yield path
    os.umask(before)


def give(path: Path) -> None:
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


def link_to(target: Path) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def hard_link_to(target: Path) -> Callable[[Path], None]:
    return lambda path: path.hardlink_to(target)


def theirs(path: Path) -> None:
    path.write_bytes(TEXT)
    path.chmod(0o666)


def save(root: Path, size: int = 2, step: int = 1) -> None:
    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, root) as checkpoints:
            await (await checkpoints.save(step, x=np.arange(9)))  # type: ignore[misc]
            found = await checkpoints.load()
            assert found is not None and found.step == step and found["x"].tolist() == list(range(9))

    for failed in asyncio.run(run_cluster(size, part, return_exceptions=True)):
        if failed is not None:
            raise failed


# checkpoints


@pytest.mark.parametrize("mode", [0o2775, 0o1777, 0o777])
def test_a_shared_folder_goes_on_working(shared: Path, mode: int) -> None:
    shared.chmod(mode)
    save(shared / "a" / "b")
    save(shared / "a" / "b", step=2)
    made = shared / "a" / "b" / "000001-step-1"
    assert stat.S_IMODE((made / "index.json").stat().st_mode) == 0o664  # as the program's umask has it
    assert stat.S_IMODE(made.stat().st_mode) & 0o777 == 0o775


def test_a_folder_of_another_user_that_the_program_has_named(shared: Path) -> None:
    """Of a colleague, in the same group."""
    give(shared)
    save(shared / "a")


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", ["index.json.early", "index.json", "rank-00000.safetensors"])
def test_a_link_in_a_checkpoints_folder_is_not_written_through(
    shared: Path, precious: Path, name: str, given: bool
) -> None:
    """The audit's attack: the index was written by way of a name that everybody knew."""
    planted = shared / "000001-step-1"
    real, one_at_a_time = checkpoint_folder.begin, threading.Lock()

    def begin(path: Path) -> None:
        real(path)
        with one_at_a_time:  # each rank has a thread of its own
            if not (planted / name).is_symlink():
                (planted / name).unlink(missing_ok=True)
                (planted / name).symlink_to(precious)
                if given:
                    give(planted / name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aiodist.ddp.checkpoint.checkpoints.begin", begin)
        if name == "index.json.early":
            save(shared)
        else:
            with pytest.raises(CheckpointError, match=r"File exists|is a link, which is not followed"):
                save(shared, size=1)
    assert precious.read_bytes() == TEXT and stat.S_IMODE(precious.stat().st_mode) == 0o600
    save(shared, step=2)


@pytest.mark.parametrize("given", [False, True])
def test_a_checkpoints_folder_that_is_a_link(shared: Path, tmp_path: Path, given: bool) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    real = checkpoint_folder.begin

    def begin(path: Path) -> None:
        if not path.is_symlink():
            path.symlink_to(target)
            if given:
                give(path)
        real(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aiodist.ddp.checkpoint.checkpoints.begin", begin)
        with pytest.raises(CheckpointError, match=r"Not a directory|Too many levels"):
            save(shared, size=1)
    assert list(target.iterdir()) == []


def test_what_is_removed_is_not_removed_through_a_link(shared: Path, precious: Path) -> None:
    """Neither the checkpoint, nor what lies in it."""
    elsewhere = precious.parent / "elsewhere"
    (elsewhere / "in").mkdir(parents=True)
    (elsewhere / "file").write_bytes(TEXT)
    unfinished = shared / "000001-step-1"
    unfinished.mkdir()
    for name, target in (("a", elsewhere), ("b", precious)):
        (unfinished / name).symlink_to(target)
        give(unfinished / name)
    for name in ("000002-step-2", ".000003-step-3.gone"):
        (shared / name).symlink_to(elsewhere)
        give(shared / name)
    save(shared)
    assert not unfinished.exists()
    assert precious.read_bytes() == TEXT and (elsewhere / "file").read_bytes() == TEXT
    assert (elsewhere / "in").is_dir()


def test_the_way_to_checkpoints_leads_over_no_other_users_link(shared: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (shared / "way").symlink_to(target)
    save(shared / "way" / "mine")  # this user's own link is as good as the folder
    give(shared / "way")
    with pytest.raises(CheckpointError, match="is a link that user 4711 made"):
        save(shared / "way" / "theirs", size=1)
    assert [one.name for one in target.iterdir()] == ["mine"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["index.json", "rank-00000.safetensors"])
def test_a_fifo_in_a_checkpoint_is_not_waited_for(shared: Path, name: str) -> None:
    save(shared)
    path = shared / "000001-step-1" / name
    path.unlink()
    os.mkfifo(path)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, shared) as checkpoints:
            with pytest.raises(CheckpointError, match=r"not a regular file|has no checkpoint of step 1"):
                await checkpoints.load(1)

    asyncio.run(run_cluster(1, part))


# one file that the user has named


def by_itself(path: Path) -> None:
    write_file(path, b"written")


def constants(path: Path) -> None:
    from aiodist.sim.constants import Constants, save

    save(Constants(), str(path))


WRITERS: list[Any] = [by_itself, constants]


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_is_written_in_a_shared_folder(shared: Path, write: Callable[[Path], None]) -> None:
    for mode in (0o2775, 0o1777):
        shared.chmod(mode)
        write(shared / "out")
        assert (shared / "out").read_bytes() and stat.S_IMODE((shared / "out").stat().st_mode) == 0o664
    (shared / "out").chmod(0o600)
    write(shared / "out")  # again, and as it was
    assert stat.S_IMODE((shared / "out").stat().st_mode) == 0o600
    assert [one.name for one in shared.iterdir()] == ["out"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("what", ["link", "dangling", "fifo", "theirs", "hard link"])
def test_what_stands_in_its_way_is_not_written_to(
    shared: Path, precious: Path, write: Callable[[Path], None], given: bool, what: str
) -> None:
    nowhere = precious.with_name("nowhere")
    of_another = precious.with_name("of-another")
    of_another.write_bytes(TEXT)
    give(of_another)
    make: dict[str, Callable[[Path], None]] = {
        "link": link_to(precious),
        "dangling": link_to(nowhere),
        "fifo": os.mkfifo,
        "theirs": theirs,
        "hard link": hard_link_to(of_another),
    }
    make[what](shared / "out")
    if given or what == "theirs":
        give(shared / "out")
    with pytest.raises(AiodistError, match=r"link|not a regular file|belongs to user 4711"):
        write(shared / "out")
    assert precious.read_bytes() == TEXT and of_another.read_bytes() == TEXT
    assert not nowhere.exists() and [one.name for one in shared.iterdir()] == ["out"]
    assert what != "theirs" or (shared / "out").read_bytes() == TEXT


@pytest.mark.parametrize("call", ["rename", "write", "fchmod"])
def test_a_link_that_comes_between_the_look_and_the_use(shared: Path, precious: Path, call: str) -> None:
    """Another user plants it at every moment; whatever comes last is replaced, and not followed."""
    (shared / "out").write_bytes(b"before")
    real = getattr(os, call)

    def planted(*args: Any, **named: Any) -> Any:
        (shared / "out").unlink()
        (shared / "out").symlink_to(precious)
        give(shared / "out")
        return real(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, planted)
        write_file(shared / "out", b"written")
    assert precious.read_bytes() == TEXT
    assert (shared / "out").read_bytes() == b"written" and not (shared / "out").is_symlink()


def test_a_hard_link_of_ones_own_file_is_replaced(shared: Path, precious: Path) -> None:
    (shared / "out").hardlink_to(precious)
    write_file(shared / "out", b"written")
    assert precious.read_bytes() == TEXT and (shared / "out").read_bytes() == b"written"


def test_a_disk_that_is_full_leaves_the_file_as_it_was(shared: Path) -> None:
    write_file(shared / "out", b"before")

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(AiodistError, match="No space left"):
            write_file(shared / "out", b"written")
    assert (shared / "out").read_bytes() == b"before" and [one.name for one in shared.iterdir()] == ["out"]


# folders


def test_a_new_folder_is_made_along_no_other_users_link(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (shared / "way").symlink_to(tmp_path / "elsewhere")
    give(shared / "way")
    for use in (make_folders, lambda path: Folder.named(path, make=True)):
        with pytest.raises(UntrustedError, match="is a link that user 4711 made"):
            use(shared / "way" / "a" / "b")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_trace_for_torch_is_written_into_new_files(
    shared: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aiodist.cli.commands import trace
    from aiodist.observe import flight

    def dumps(job: Any) -> dict[int, dict[str, Any]]:
        (shared / "new" / "rank_0").symlink_to(precious)  # when the folder has been looked at
        give(shared / "new" / "rank_0")
        return {0: {"entries": [1]}, 1: {"entries": [2]}}

    monkeypatch.setattr(flight, "flight", dumps)
    with pytest.raises(AiodistError, match="rank_0 is a link, which is not followed"):
        trace.write_flight(None, shared / "new")  # type: ignore[arg-type]
    assert precious.read_bytes() == TEXT
    monkeypatch.setattr(flight, "flight", lambda job: {0: {"entries": [1]}})
    trace.write_flight(None, shared / "newer")  # type: ignore[arg-type]
    assert pickle.loads((shared / "newer" / "rank_0").read_bytes()) == {"entries": [1]}
    with pytest.raises(UsageError, match="there is something in"):
        trace.write_flight(None, shared / "newer")  # type: ignore[arg-type]


def test_logs_go_into_a_folder_of_this_user_alone(shared: Path, tmp_path: Path) -> None:
    from aiodist.launch.config import LaunchConfig

    def logs(folder: Path) -> LogFiles:
        return LogFiles(LaunchConfig(command=("true",), log_dir=str(folder)), "job", "run", 0.0)

    made = logs(shared / "logs")
    made.prepare(0, 0)
    handle = made.open(0, 0, "stdout.log")
    os.write(handle, b"said")
    os.close(handle)
    assert stat.S_IMODE(Path(made.folder).stat().st_mode) & 0o777 == 0o700
    assert Path(made.path(0, 0, "stdout.log")).read_bytes() == b"said"
    (tmp_path / "elsewhere").mkdir()
    (shared / "way").symlink_to(tmp_path / "elsewhere")
    give(shared / "way")
    with pytest.raises(UsageError, match=r"cannot write logs to .*is a link that user 4711 made"):
        logs(shared / "way" / "logs")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_simulations_report_is_json(shared: Path) -> None:
    write_file(shared / "out", json.dumps({"ä": 1}, ensure_ascii=False))
    assert json.loads((shared / "out").read_text("utf-8")) == {"ä": 1}
