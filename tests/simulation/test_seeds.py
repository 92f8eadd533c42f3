"""Some of what `python -m tests.simulation` runs by the thousand, and every crash of one rebuild."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.epochs.regroup import regroup_of
from aiodist.group.membership import ballot
from aiodist.testing import run_cluster, run_virtual
from tests.levels import COSTLY, few
from tests.simulation.ledger import Ledger
from tests.simulation.plan import Fault, Plan, plan
from tests.simulation.run import simulate, steady
from tests.support.chaos import Chaos, Crashed

SEEDS = 150
CHUNK = 15


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("first", few(range(0, SEEDS, CHUNK), [0, CHUNK]))
def test_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = simulate(plan(seed))
        assert outcome.ledger.violations == [], f"python -m tests.simulation --seed {seed} --verbose"


def rebuild_of_three(hosted: bool, victim: int | None, step: int, second: bool = False) -> list[int]:
    """Three ranks rebuild; one crashes before a step of its rebuild. → how many steps each took in it.

    Args:
        second: another one had crashed before, which is why they rebuild; else they do so at a boundary.
    """
    chaos = Chaos(seed=step, hosted=hosted, hosts=[0] * 4)
    ledger = Ledger()
    began: dict[int, int] = {}
    size = 4 if second else 3

    async def main(pg: ProcessGroup) -> int:
        rank = pg.rank
        await asyncio.sleep(0.05)
        if rank == 3:
            chaos.crash(3)
        if second:
            with pytest.raises(dist.PeerLost):
                await pg.barrier()
        began[rank] = chaos.processes[rank].steps
        if rank == victim:
            chaos.crash_at_step(rank, began[rank] + step)
        while True:
            try:
                pg = await pg.rebuild(timeout=2)
                regroup = regroup_of(pg)
                assert regroup is not None
                ledger.entered(rank, pg.epoch, regroup.uids)
                if victim is None or pg.size == 2:
                    return chaos.processes[rank].steps
                await asyncio.sleep(0.2)
                await pg.barrier()
                return 0  # the victim lives: it took fewer steps
            except dist.PeerLost:
                assert victim is not None

    with steady():
        results = run_virtual(run_cluster(size, main, processes=chaos, timeout=3.0))
    assert ledger.violations == []
    survivors = [result for rank, result in enumerate(results) if rank not in (victim, 3)]
    assert not any(isinstance(result, Crashed) for result in survivors)
    return [0 if rank == victim else results[rank] - began[rank] for rank in range(3)]


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("hosted", few([False, True], [False]), ids=["store", "majority"])
@pytest.mark.parametrize("victim", few([0, 1, 2], [0]))
@pytest.mark.parametrize("second", few([False, True], [True]), ids=["first", "second"])
def test_a_crash_at_every_step_of_a_rebuild(victim: int, hosted: bool, second: bool) -> None:
    steps = rebuild_of_three(hosted, None, 0, second)[victim]
    assert steps > 20
    for step in range(1, steps + 2):
        rebuild_of_three(hosted, victim, step, second)


@pytest.mark.slow(COSTLY)
def test_the_same_seed_gives_the_same_run_in_any_process() -> None:
    seed = next(seed for seed in range(1000) if len(plan(seed).faults) >= 3 and plan(seed).hosted)
    said = {f"seed {seed}: 0 violations, digest {simulate(plan(seed)).ledger.digest()}"}
    for salt in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
        env = {**os.environ, "PYTHONHASHSEED": salt}
        root = Path(__file__).parents[2]
        done = subprocess.run(
            command, cwd=root, env=env, capture_output=True, text=True, timeout=50, check=True
        )
        said.add(done.stdout.strip())
    assert len(said) == 1


QUIET = Plan(
    *(0, 3, False, (0, 1, 2), (0.0001, 0.001), 0.5),
    pause=0.02,
    timeout=2.0,
    min_size=1,
    faults=(),
    calls=True,
)


@pytest.mark.slow(COSTLY)
def test_without_faults_everybody_ends_well() -> None:
    for seed in range(5):
        for hosted in (False, True):
            outcome = simulate(dataclasses.replace(QUIET, seed=seed, hosted=hosted))
            assert outcome.ledger.violations == []
            ends = set(outcome.ledger.ends.values())
            assert "done" in ends
            assert all(end == "done" or "was formed without" in end or "without this" in end for end in ends)


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    all_reduce = ProcessGroup.all_reduce

    def off(self: ProcessGroup, tensor: object, *args: object, **options: object) -> object:
        if self.rank == 1:
            tensor[0] += 1  # type: ignore[index]
        return all_reduce(self, tensor, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ProcessGroup, "all_reduce", off)
    assert any("sum" in words for words in simulate(QUIET).ledger.violations)


@pytest.mark.slow(COSTLY)
def test_a_split_brain_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where everybody may decide alone, a partition makes two epochs."""
    monkeypatch.setattr(ballot.Ballots, "_count", _alone)
    apart = Fault(0.2, "partition", (0, 1), (2,), 60.0)
    split = dataclasses.replace(QUIET, hosted=True, faults=(apart,), lasts=20.0, calls=False)
    assert any("two epochs" in words for words in simulate(split).ledger.violations)


def _alone(
    self: ballot.Ballots, topic: str, proposal: ballot._Proposal, dead: object
) -> list[ballot.Addressed]:
    self.chosen.setdefault(topic, proposal.value)
    return []
