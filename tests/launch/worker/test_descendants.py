"""Who a process has started, and signals to nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aiodist.base.environment.process import stat_fields
from aiodist.launch.worker import descendants as module
from aiodist.launch.worker.descendants import descendants, members, send

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

# A child, its child from a thread, and a third in a session of its own; each says who it is, the last first.
FAMILY = """
import os, signal, subprocess, sys, threading
depth = int(sys.argv[1])
def more():
    global child
    child = subprocess.Popen([sys.executable, __file__, str(depth - 1)], start_new_session=depth == 2)
if depth:
    thread = threading.Thread(target=more)
    thread.start()
    thread.join()
os.write(1, b"%d %d\\n" % (depth, os.getpid()))
signal.pause()
"""


@pytest.fixture
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """pids: child, grandchild, and its child."""
    script = tmp_path_factory.mktemp("family") / "family.py"
    script.write_text(FAMILY)
    child = subprocess.Popen(
        [sys.executable, str(script), "2"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    with child.stdout:
        told = [child.stdout.readline().split() for _ in range(3)]
    pids = {int(depth): int(pid) for depth, pid in told}
    yield [pids[2], pids[1], pids[0]]
    for pid in pids.values():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    child.wait()


@pytest.mark.parametrize("lists", [True, False], ids=["listed", "counted"])
def test_descendants_of_all_generations(
    family: list[int], lists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's lists, and without them."""
    if not lists:
        monkeypatch.setattr(module, "_listed", None)
        monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert set(family) <= descendants()
    assert os.getpid() not in descendants()


def test_members_of_a_group(family: list[int]) -> None:
    child, second, third = family
    assert members(child) == {child}
    assert members(second) == {second, third}
    os.kill(third, signal.SIGKILL)  # its parent does not collect it
    while third in members(second):
        os.sched_yield()
    assert members(second) == {second}


def test_signal_reaches_only_who_is_still_meant(family: list[int]) -> None:
    child, second, _ = family
    send(signal.SIGKILL, {child, second, 1 << 22}, lambda: {second})
    while stat_fields(second)[0] != "Z":  # `child` does not collect it
        os.sched_yield()
    assert stat_fields(child)[0] != "Z"


def test_nobody_left_to_reap() -> None:
    """In a process that has no children of its own."""
    code = """
import os
from aiodist.launch.worker.descendants import reap
try:
    reap()
except ChildProcessError:
    pass
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {})
while not (ended := reap()):
    pass
assert ended == {pid: 7}, ended
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
