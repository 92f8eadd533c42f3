"""Some of what `python -m tests.programs --of forks` runs by the thousand."""

from __future__ import annotations

import pytest

from tests.levels import COSTLY, few
from tests.programs.fork_mutations import MUTATIONS, Mutation
from tests.programs.forks import APART, EXITS, IN_THE_LOOP, MEANWHILE, THEN, Plan, World, job, jobs, run_plans

MOST = 60
"""Programs among which one has to go wrong where a mend is taken back."""

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(600)
@LOOPS
@pytest.mark.parametrize("transport", few(["auto", "tcp"], ["auto"]))
def test_children_leave_in_each_way(loop: str, transport: str) -> None:
    """The ranks go on, whichever it is; nobody is accused of anything."""
    under_way = [MEANWHILE[number % len(MEANWHILE)] for number in range(len(EXITS))]
    plans = [
        Plan([number % 2], "coroutine", leave, under_way[number], ["small", "calls", "thread"])
        for number, leave in enumerate(EXITS)
    ]
    assert not run_plans(plans, World(2, loop, transport))


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(600)
@LOOPS
def test_ranks_fork_in_each_way(loop: str) -> None:
    plans = [
        Plan([0, 1], way, "return", "nothing", [THEN[number % len(THEN)], "small", "thread"])
        for number, way in enumerate([*IN_THE_LOOP, *APART])
    ]
    assert not run_plans(plans, World(2, loop, host="localhost"))


@pytest.mark.timeout(600)
@pytest.mark.slow("more of the same, drawn")
@pytest.mark.parametrize("seeds", list(jobs(0, 60)), ids=lambda seeds: str(seeds[0]))
def test_programs_that_fork(seeds: list[int]) -> None:
    _, violations = job(seeds)
    assert not violations, violations[0].trace


@pytest.mark.timeout(600)
@pytest.mark.slow("takes mends back, one by one")
@pytest.mark.parametrize(("mutation", "first"), MUTATIONS)
def test_a_mend_taken_back_is_found(mutation: Mutation, first: int) -> None:
    for seeds in jobs(first, MOST):
        if job(seeds, mutation.__name__)[1]:
            assert not job(seeds)[1], "with the mend it is right"
            return
    raise AssertionError(f"none of {MOST} programs went wrong")
