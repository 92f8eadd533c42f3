"""Hosts in one machine: they come and go, or the test that wants them is skipped."""

from __future__ import annotations

import os
import subprocess
import unittest
from pathlib import Path

import pytest

from aiodist.group import ProcessGroup
from aiodist.testing.hosts import Hosts
from aiodist.testing.spmd import spmd
from tests.helpers import host_of
from tests.levels import COSTLY


def namespaces() -> set[str]:
    """Those that this process has made."""
    found = Path("/run/netns")
    return {path.name for path in found.glob(f"aiodist-{os.getpid()}-*")} if found.exists() else set()


def test_they_reach_each_other_and_leave_nothing() -> None:
    with pytest.raises(KeyError), Hosts(3, "1gbit") as hosts:
        assert len(namespaces()) == 3
        code = (
            "import socket; a = socket.create_server(('10.83.0.3', 0));"
            "b = socket.create_connection(a.getsockname()); b.close(); a.close()"
        )
        subprocess.run([*hosts.enter(2), "python3", "-c", code], check=True)
        raise KeyError
    assert namespaces() == set()


def test_without_the_means_the_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(unittest.SkipTest, match="no network namespaces here"), Hosts(2):
        pass
    assert namespaces() == set()


def test_what_was_made_before_it_failed_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodist.testing.hosts._NETWORK", "nowhere")
    with pytest.raises(unittest.SkipTest), Hosts(2):
        pass
    assert namespaces() == set()


@pytest.mark.slow(COSTLY)
@spmd(world_size=4, hosts=2)
async def test_ranks_of_one_host_alone_share_memory(pg: ProcessGroup) -> None:
    engine = host_of(pg).resources
    assert engine.by_host(range(4)) == [[0, 1], [2, 3]]
