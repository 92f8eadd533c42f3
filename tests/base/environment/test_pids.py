"""Process ids belong to a namespace."""

from __future__ import annotations

import os
import sys

import pytest

from aiodist.base.environment import pids

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


def test_where_proc_is_ours() -> None:
    assert pids.pid_space() == os.stat("/proc/self/ns/pid").st_ino
    assert pids.proc_is_ours()


def test_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "stat", none)
    monkeypatch.setattr(os, "readlink", none)
    assert (pids.pid_space(), pids.proc_is_ours()) == (0, False)
