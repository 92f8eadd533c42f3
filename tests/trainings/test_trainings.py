"""What a training's calls say is so: some of what `python -m tests.trainings` runs by the thousand, a death
at every step of the protocol, and mends that are taken back."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from aiodist.ddp import DiLoCo, sync
from aiodist.ddp.awaited import Once
from aiodist.ddp.sharded import optimizer as sharded
from tests.levels import COSTLY, MORE, few
from tests.trainings.plan import KINDS, WRAPPER, Plan, plan
from tests.trainings.run import train

SEEDS, CHUNK = 200, 20
MOST = 2000
"""Trainings among which one has to go wrong where a mend is taken back."""


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", few(range(0, SEEDS, CHUNK), [0], MORE))
def test_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        assert train(plan(seed)).violations == [], f"python -m tests.trainings --seed {seed} --verbose"


PLAIN = Plan(
    seed=0,
    kind="sharded",
    size=3,
    steps=4,
    copies=0,
    restores=True,
    every=2,
    fragments=1,
    delay=0,
    breaks=frozenset(),
    cancels=0.0,
    deaths=(),
    joins=(),
    dies_joined=0,
    pause=0.001,
)


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", few([*KINDS, WRAPPER], ["sharded"], MORE))
@pytest.mark.parametrize("victim", few([0, 2], [2], MORE))
@pytest.mark.parametrize("newcomer", few([False, True], [False], MORE))
def test_a_death_at_every_step_of_the_protocol(kind: str, victim: int, newcomer: bool) -> None:
    if kind == WRAPPER:
        pytest.importorskip("torch")
    joins = ((0.004, 20.0),) if newcomer else ()
    restored = died = 0
    for step in itertools.count(1):
        ledger = train(dataclasses.replace(PLAIN, kind=kind, joins=joins, deaths=((victim, step),)))
        assert ledger.violations == [], f"process {victim} dies before its step {step}"
        restored += ledger.restored > PLAIN.size
        if ledger.ends[victim] != "crashed":
            break
        died += 1
    assert died > 20
    assert (restored > 5) == (kind == "sharded")


def no_histories(patch: pytest.MonkeyPatch) -> None:
    """A state that was restored passes for the one that was there."""
    patch.setattr(sharded, "_new_history", str)


def half_a_finish(patch: pytest.MonkeyPatch) -> None:
    """A cancelled end of a step is begun again, and not gone on with."""

    async def of(self: Once[Any], steps: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await steps()

    patch.setattr(Once, "of", of)


def steps_of_exchanges(patch: pytest.MonkeyPatch) -> None:
    """A newcomer works out its steps from the exchanges that counted."""
    take_over = DiLoCo._take_over

    async def takes(self: DiLoCo, source: int, differs: bool) -> None:
        late = not self._known
        await take_over(self, source, differs)
        if late:
            self.steps = self.exchanges and self.exchanges * self._rhythm.period + self._rhythm.delay

    patch.setattr(DiLoCo, "_take_over", takes)


def halves_of_values(patch: pytest.MonkeyPatch) -> None:
    """The first values go straight into the module, of which a broadcast that fails leaves some."""
    from aiodist.integrations.torch.data_parallel.wrapper import DistributedDataParallel

    async def in_place(self: DistributedDataParallel, source: int) -> None:
        await self._broadcast(source, [*self._values(), *self._state])

    patch.setattr(DistributedDataParallel, "_share_all", in_place)


def passes_that_stay(patch: pytest.MonkeyPatch) -> None:
    """What the forward pass of a step that does not count did to buffers stays."""
    from aiodist.integrations.torch.data_parallel.wrapper import DistributedDataParallel

    forward = DistributedDataParallel.forward

    def remembers_none(self: DistributedDataParallel, *inputs: Any) -> Any:
        result = forward(self, *inputs)
        self._before = []
        return result

    patch.setattr(DistributedDataParallel, "forward", remembers_none)


def the_first_that_fails(patch: pytest.MonkeyPatch) -> None:
    """The end of a step waits for no more buckets when one has failed."""

    async def ended(works: list[Awaitable[Any]]) -> None:
        for work in works:
            await work

    patch.setattr(sync, "_ended", ended)


Mutation = Callable[[pytest.MonkeyPatch], None]
OF_TORCH: dict[Mutation, int] = {
    halves_of_values: 7051,  # of founders only: a newcomer that has half the values does not begin anew
    passes_that_stay: 39,
}
MUTATIONS: dict[Mutation, int] = {
    no_histories: 41,
    half_a_finish: 39,
    steps_of_exchanges: 156,
    the_first_that_fails: 860,
    **OF_TORCH,
}
"""Each with the seed to begin with: while trainings are drawn as they are, one soon after it goes wrong."""


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mend_taken_back_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutation in OF_TORCH:
        pytest.importorskip("torch")
    for number in range(MOST):
        drawn = plan(MUTATIONS[mutation] + number)
        with monkeypatch.context() as patch:
            mutation(patch)
            violations = train(drawn).violations
        if violations:
            assert train(drawn).violations == [], "with the mend it is right"
            return
    raise AssertionError(f"none of {MOST} trainings went wrong")
