"""Who is stopped, said once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from aiodist.launch.worker.states import Stopped, state_of


def test_each_change_is_said_once() -> None:
    stopped, pids = Stopped(), {0: 10, 1: 11}
    assert stopped.news(pids, [(0, "S"), (1, "R")]) == []
    [line] = stopped.news(pids, [(0, "S"), (1, "T")])
    assert line.startswith("rank 1 (pid 11) is stopped") and line.endswith("kill -CONT 11")
    assert stopped.news(pids, [(0, "S"), (1, "T")]) == []
    assert stopped.news(pids, [(0, "S"), (1, "")]) == [], "it could not be read"
    assert stopped.news(pids, [(0, "t"), (1, "D")]) == [
        "rank 0 (pid 10) is held by a debugger; the others wait for it. To let it go on: kill -CONT 10",
        "rank 1 (pid 11) goes on",
    ]


def test_a_process_that_is_gone_does_not_go_on() -> None:
    stopped = Stopped()
    assert len(stopped.news({1: 11}, [(1, "T")])) == 1
    assert stopped.news({1: 12}, [(1, "S")]) == [], "another process in its place"
    assert len(stopped.news({1: 12}, [(1, "T")])) == 1
    assert stopped.news({}, []) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_state_of_a_real_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    os.kill(process.pid, signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert state_of(process.pid) == "T"
    process.kill()
    process.wait()
    assert state_of(process.pid) == ""
