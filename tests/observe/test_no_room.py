"""Ranks that find no room in shared memory, or a folder that is open to others: seen, or told why not."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aiodist.base.errors
from aiodist.base.errors import UsageError
from aiodist.cli.commands import jobs, stacks, top
from aiodist.observe.recorder import records
from aiodist.observe.recorder.records import FAULT, STACKS, Memory, open_folder
from tests.levels import few
from tests.ports import free_port

ROOT = Path(aiodist.__file__).parents[1]
OWN = f"aiodist-{os.geteuid()}"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux"),
    pytest.mark.timeout(120),
]

PROGRAM = """
import asyncio, ctypes, os, logging
import aiodist as dist

async def main():
    logging.basicConfig()
    pg = await dist.init_process_group()
    await pg.barrier()
    if pg.rank == 1:
        ctypes.PyDLL(None).pause()  # the cause
    try:
        await pg.barrier(timeout=60)
    finally:
        os._exit(0)

asyncio.run(main())
"""
CAUSE = PROGRAM.splitlines().index("        ctypes.PyDLL(None).pause()  # the cause") + 1


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts a file system")
@pytest.mark.parametrize("room", few(["0", "600k", "64m"], ["600k"]))
def test_a_rank_without_room_in_shared_memory_is_seen(room: str) -> None:
    """Jobs that are started by hand: a held interpreter is told with its line, wherever its record lies."""
    limit = "nr_inodes=1" if room == "0" else f"size={room}"
    needed = {path for path in (ROOT, Path(sys.prefix)) if path.is_relative_to("/tmp")}
    steps = [f"mount -t tmpfs -o {limit} tmpfs /dev/shm", "mount -t tmpfs tmpfs /mnt"]
    for number, path in enumerate(needed):  # what the ranks run stays where it is
        steps.append(f"mkdir /mnt/{number} && mount --bind '{path}' /mnt/{number}")
    steps.append("mount -t tmpfs tmpfs /tmp")
    for number, path in enumerate(needed):
        steps.append(f"mkdir -p '{path}' && mount --bind /mnt/{number} '{path}'")
    mounts = " && ".join([*steps, "cd /tmp", "cat > held.py"])
    together = f'{mounts} && (RANK=1 "$@" & RANK=0 "$@" & wait)'
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "AIODIST_STALL_AFTER": "3",
    }
    command = ["unshare", "--mount", "sh", "-c", together, "sh", sys.executable, "held.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stderr=pipe, text=True, start_new_session=True
    ) as job:
        try:
            box = ""
            assert job.stdin is not None and job.stderr is not None
            job.stdin.write(PROGRAM)
            job.stdin.close()
            for line in job.stderr:
                box += line
                if line.startswith("╰"):
                    break
        finally:
            os.killpg(job.pid, 9)
    assert "a call holds its interpreter" in box
    assert f"held.py:{CAUSE} in main" in box


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Shared memory, and the place of what finds no room there."""
    both = tmp_path / "shm", tmp_path / "tmp"
    for path, name in zip(both, ("SHARED_MEMORY", "ELSEWHERE"), strict=True):
        path.mkdir()
        monkeypatch.setattr(records, name, path)
    return both


def test_what_lies_beside_a_record_is_where_that_is(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Memory("first")
    fallocate = os.posix_fallocate

    def full(handle: int, start: int, size: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").startswith(str(places[0])):
            raise OSError(28, os.strerror(28))
        fallocate(handle, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    second = Memory("second")
    both = [places[0] / OWN / first.name, places[1] / OWN / second.name]
    assert all(path.is_file() for path in both)
    with open_folder() as folder:
        assert folder.names() == sorted([first.name, second.name])
        for memory in (first, second):
            os.close(folder.fresh(f"{memory.name}.new{STACKS}"))
            folder.rename(f"{memory.name}.new{STACKS}", f"{memory.name}{STACKS}")
            os.close(folder.file(f"{memory.name}{FAULT}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            assert folder.size(f"{memory.name}{STACKS}") == folder.stat(f"{memory.name}{FAULT}").st_size == 0
        for path in both:
            assert path.with_name(path.name + STACKS).exists() and path.with_name(path.name + FAULT).exists()
    second.remove()
    first.remove()
    assert list(places[0].glob("*/*")) == list(places[1].glob("*/*")) == []


def test_a_process_that_nobody_can_see_says_so(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (places[1] / OWN).mkdir()
    (places[1] / OWN).chmod(0o770)
    (places[1] / OWN).chmod(0o777)

    def full(*_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    memory = Memory("job")
    assert isinstance(memory.buffer, bytearray) and memory.name == ""
    assert f"neither to {places[0] / OWN}: No space left on device" in caplog.text
    assert f"nor to {places[1] / OWN}: others may write to it (mode 0777)" in caplog.text
    memory.remove()


@pytest.mark.parametrize("main", [jobs.main, stacks.main, top.main])
def test_commands_name_a_folder_that_is_not_read(main: object, places: tuple[Path, Path]) -> None:
    folder = places[0] / OWN
    folder.mkdir()
    folder.chmod(0o777)
    assert callable(main)
    with pytest.raises(UsageError, match=r"others may write to it \(mode 0777\)") as caught:
        main([])
    assert str(folder) in str(caught.value) and f"chmod 700 {folder}" in str(caught.value)
    folder.chmod(0o700)
    with contextlib.suppress(UsageError):  # there is no job
        main([])
