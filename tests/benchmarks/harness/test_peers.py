"""Who takes part, and one line for each who is absent."""

from __future__ import annotations

import pytest

from benchmarks import mpi
from benchmarks.harness import peers


def here(flavour: mpi.Flavour, chosen: str | None) -> mpi.Mpi | str:
    return mpi.Mpi(f"/opt/{flavour.name}/bin/mpirun", chosen or "/opt", {"A": "1"})


def no_mpi(flavour: mpi.Flavour, chosen: str | None) -> mpi.Mpi | str:
    return "no launcher"


def test_all_take_part_in_order() -> None:
    found = peers.find({}, lambda _: True, here)
    assert list(found.peers) == ["aiodist", "gloo", "openmpi", "aiodist-openmpi", "mpich", "aiodist-mpich"]
    assert not found.missing
    assert found.peers["openmpi"].env == {"A": "1"}


def test_absent_ones_are_named_with_a_reason() -> None:
    found = peers.find({}, lambda _: False, here)
    assert list(found.peers) == ["aiodist"]
    assert found.missing == [
        "gloo: torch is not installed",
        "openmpi: mpi4py is not installed",
        "mpich: mpi4py is not installed",
    ]
    assert peers.find({}, lambda _: True, no_mpi).missing == ["openmpi: no launcher", "mpich: no launcher"]


def test_more_ranks_than_cores_need_a_word_for_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    found = peers.find({}, lambda _: True, here)
    peer = found.peers["openmpi"]
    assert peer.command(["x"], 2) == ["/opt/openmpi/bin/mpirun", "-n", "2", "x"]
    awaited = found.peers["aiodist-openmpi"]
    assert awaited.command(["x"], 4) == peer.command(["x"], 4)
    assert peer.command(["x"], 4) == ["/opt/openmpi/bin/mpirun", "--oversubscribe", "-n", "4", "x"]
