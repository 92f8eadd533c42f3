"""Sweeps: what is worked out from what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.harness.cases import Case
from benchmarks.harness.peers import Found, Peer
from benchmarks.harness.results import Results
from benchmarks.harness.run import Run, Settings
from benchmarks.speed.bars import evaluate
from benchmarks.speed.goals import MPI
from benchmarks.speed.suites import sweeps


def test_what_the_backend_mpi_takes_above_a_barrier_is_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(
        Found({name: Peer(name, "", "") for name in ("mpich", "aiodist-mpich")}, []), Settings(), Results()
    )

    def measure(run: Run, suite: str, case: Case, size: int, peers: list[Peer], others: Any) -> None:
        for peer, seconds in (("aiodist-mpich", 15e-6), ("mpich", 2e-6)):
            run.results.add(suite, case.what, peer, [seconds], ranks=size, nbytes=case.nbytes)
        run.results.add(suite, others["aiodist"].what, "aiodist", [4e-6], ranks=size)

    monkeypatch.setattr(sweeps, "measure", measure)
    sweeps.over_mpi(run)[0].work()
    outcome = evaluate(run.results, MPI)[0]
    assert outcome.value == pytest.approx(11e-6)
    assert outcome.met is False
