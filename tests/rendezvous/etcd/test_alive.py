"""Whether another process is dead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from aiodist.rendezvous.etcd.alive import is_gone, this_process


def test_a_living_process_is_not_gone() -> None:
    me = json.loads(this_process())
    assert me["pid"] == os.getpid()
    assert not is_gone(this_process())
    assert not is_gone(json.dumps({**me, "where": "another boot", "start": "1"}).encode())
    for nonsense in (b"", b"[]", b"{}", b"\xff"):
        assert not is_gone(nonsense)


def test_a_pid_that_is_used_again_is_another_process() -> None:
    me = json.loads(this_process())
    if not me["where"]:
        pytest.skip("this system does not tell")
    assert is_gone(json.dumps({**me, "start": "1"}).encode())


def test_a_dead_process_is_gone_before_anybody_reaps_it() -> None:
    code = "import sys; from aiodist.rendezvous.etcd.alive import this_process\n"
    code += "print(this_process().decode(), flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    said = process.stdout.readline()
    assert not is_gone(said)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(said)
    process.communicate()
    assert is_gone(said)
