"""Which host this is, and what the kernel says about a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aiodist.base.environment import process
from aiodist.base.environment.process import boot_id, host_id, pid_space, signal_name, stat_fields

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def test_a_host_has_one_name() -> None:
    assert host_id() == host_id() != ""


@linux
def test_a_boot_has_one_id_and_a_namespace_of_processes() -> None:
    assert host_id() == boot_id()
    assert len(boot_id()) == 36
    boot, _, namespace = pid_space().partition("/")
    assert boot == boot_id()
    assert os.readlink("/proc/self/ns/pid") == f"pid:[{namespace}]"


def test_pids_mean_nothing_where_the_boot_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first namespace has the same number on every host, and hosts may have the same name."""
    monkeypatch.setattr(process, "boot_id", lambda: "")
    assert pid_space() == ""
    assert host_id() == os.uname().nodename


@linux
def test_a_process_in_numbers_whatever_its_name() -> None:
    name = "import sys; open('/proc/self/comm', 'wb').write(b') \\xff R 1'); "
    name += "print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        _state, parent, group = stat_fields(child.pid)[:3]
        assert (int(parent), int(group)) == (os.getpid(), child.pid)
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert stat_fields(child.pid)[0] == "Z"
    with pytest.raises(OSError):
        stat_fields(child.pid)


def test_a_signal_has_its_name_or_its_number() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(99) == "signal 99"
