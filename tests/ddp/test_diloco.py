"""DiLoCo: against a plain computation, with fragments, delay, codecs, deaths, newcomers and damage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import NonFiniteValues, PeerLost, UsageError
from aiodist.ddp import DiLoCo, LocalSGD
from aiodist.ddp.diloco import source_of
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.helpers import core_of

SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((4, 3), np.float32),
    ((), np.float32),
    ((7,), np.float64),
    ((5,), np.float32),
]


def on_all(size: int, part: Callable[[ProcessGroup], Awaitable[Any]]) -> list[Any]:
    return run_virtual(run_cluster(size, part))


def weights(rank: int = 0) -> list[Any]:
    rng = np.random.default_rng(rank)
    return [np.array(rng.standard_normal(shape), dtype) for shape, dtype in SHAPES]


def drift(rank: int, step: int, index: int) -> Any:
    """What a rank's own optimiser does in a step."""
    shape, dtype = SHAPES[index]
    return np.array(np.random.default_rng([rank, step, index]).standard_normal(shape) * 0.1, dtype)


def move(arrays: list[Any], rank: int, step: int) -> None:
    for index, array in enumerate(arrays):
        array += drift(rank, step, index)


def reference(size: int, steps: int, every: int, rate: float, momentum: float) -> list[Any]:
    """DiLoCo without fragments, worked out plainly."""
    common = [one.astype(np.float64) for one in weights(0)]
    velocity = [np.zeros_like(one) for one in common]
    own = [[one.copy() for one in common] for _ in range(size)]
    for step in range(1, steps + 1):
        for rank in range(size):
            move(own[rank], rank, step)
        if step % every == 0:
            for index, one in enumerate(common):
                gradient = np.mean([one - own[rank][index] for rank in range(size)], axis=0)
                velocity[index] = momentum * velocity[index] + gradient
                one -= rate * (gradient + momentum * velocity[index] if momentum else gradient)
                for rank in range(size):
                    own[rank][index] = one.copy()
    return common


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("codec", [None, "int8"])
def test_it_is_what_the_paper_says(size: int, codec: str | None) -> None:
    async def part(pg: ProcessGroup) -> list[Any]:
        mine = weights(pg.rank)
        diloco = await DiLoCo(pg, mine, sync_every=4, codec=codec)
        for own, first in zip(mine, weights(0), strict=True):
            assert own.tobytes() == first.tobytes()
        for step in range(1, 13):
            move(mine, pg.rank, step)
            assert (await diloco.step())[0] is mine[0]
        assert (diloco.steps, diloco.exchanges, diloco.repairs) == (12, 3, 0)
        return mine

    results = on_all(size, part)
    wanted = reference(size, 12, 4, 0.7, 0.9)
    for index, exact in enumerate(wanted):
        assert len({result[index].tobytes() for result in results}) == 1
        assert np.allclose(results[0][index], exact, atol=1e-5 if codec is None else 0.02)


def test_local_sgd_is_the_average() -> None:
    async def part(pg: ProcessGroup) -> list[Any]:
        mine = weights(pg.rank)
        local = await LocalSGD(pg, mine, sync_every=2)
        for step in range(1, 5):
            move(mine, pg.rank, step)
            await local.step()
        return mine

    first, second = on_all(2, part)
    for index, exact in enumerate(reference(2, 4, 2, 1.0, 0.0)):
        assert first[index].tobytes() == second[index].tobytes()
        assert np.allclose(first[index], exact, atol=1e-5)


@pytest.mark.parametrize(("delay", "mix"), [(0, 0.0), (2, 0.5), (1, 1.0)])
def test_fragments_are_exchanged_one_after_the_other(delay: int, mix: float) -> None:
    async def part(pg: ProcessGroup) -> Any:
        mine = weights(pg.rank)
        diloco = await DiLoCo(pg, mine, sync_every=12, fragments=[[0, 3], [1], [2]], delay=delay, mix=mix)
        seen = []
        for step in range(1, 25):
            move(mine, pg.rank, step)
            await diloco.step()
            if (step - delay) % 4 == 0 and step > delay:
                seen.append([one.values.tobytes() for one in diloco._commons])
        assert diloco.exchanges == len(seen) == 6 - (delay > 0)
        return seen

    first, second = on_all(2, part)
    assert first == second
    for number in range(1, len(first)):
        changed = [a != b for a, b in zip(first[number - 1], first[number], strict=True)]
        assert changed == [number % 3 == fragment for fragment in range(3)]


def test_values_that_cannot_be_written_come_back_as_new_ones() -> None:
    def frozen(array: Any) -> Any:
        array = np.array(array)
        array.flags.writeable = False
        return array

    async def part(pg: ProcessGroup) -> Any:
        values = [frozen(one) for one in weights(pg.rank)]
        diloco = await DiLoCo(pg, values, sync_every=2)
        values = list(diloco._arrays)
        for step in range(1, 5):
            moved = [one + drift(pg.rank, step, index) for index, one in enumerate(values)]
            values = await diloco.step([frozen(one) for one in moved])
        with pytest.raises(UsageError, match="cannot be written"):
            await diloco.step()
        with pytest.raises(UsageError, match="3 values for 4 arrays"):
            await diloco.step(values[:3])
        with pytest.raises(UsageError, match="other shapes"):
            await diloco.step([frozen(np.ones(9)) for _ in values])
        return values

    first, _ = on_all(2, part)
    for own, exact in zip(first, reference(2, 4, 2, 0.7, 0.9), strict=True):
        assert np.allclose(own, exact, atol=1e-5)


@pytest.mark.parametrize("codec", [None, "int4"])
def test_values_that_are_not_finite_change_nothing(codec: str | None) -> None:
    async def part(pg: ProcessGroup) -> None:
        mine = weights()
        diloco = await DiLoCo(pg, mine, sync_every=1, codec=codec)
        common = [one.values.copy() for one in diloco._commons]
        if pg.rank == 1:
            mine[0][1, 1] = np.inf
        with pytest.raises(NonFiniteValues):
            await diloco.step()
        for before, one in zip(common, diloco._commons, strict=True):
            assert (before == one.values).all()
        mine[0][1, 1] = 0
        await diloco.step()
        assert diloco.exchanges == 1

    on_all(2, part)


def test_a_rank_whose_common_values_are_damaged_gets_those_of_the_majority(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def part(pg: ProcessGroup) -> Any:
        mine = weights()
        diloco = await DiLoCo(pg, mine, sync_every=1)
        if pg.rank == 1:
            diloco._commons[0].velocity[3] += 1  # a bit that fell over
        move(mine, pg.rank, 1)
        await diloco.step()
        assert diloco.repairs == (pg.rank == 1)
        return diloco._commons[0].values.tobytes(), diloco._commons[0].velocity.tobytes(), mine[0].tobytes()

    assert len(set(on_all(3, part))) == 1
    assert "rank 1 had other common values after exchange 1: it has those of rank 0 now" in caplog.text


@pytest.mark.parametrize("delay", [0, 1])
def test_a_group_that_another_error_has_broken_is_formed_anew(delay: int) -> None:
    """Work on this rank's own values is done in a broken group, too: whatever the group's error came from."""

    async def part(pg: ProcessGroup) -> list[float]:
        mine = [np.full(4, 10.0)]
        diloco = await DiLoCo(
            pg, mine, sync_every=2, delay=delay, outer_lr=1.0, outer_momentum=0.0, elastic=True
        )
        for step in range(5):
            mine[0] += 2.0 * pg.rank
            if step == 1 + delay:
                error = PeerLost([1], "cannot be reached")
                error.__cause__ = OSError(111, "Connection refused")
                core_of(pg).break_group(error)
            await diloco.step()
        assert (diloco.pg.epoch, diloco.steps, diloco.exchanges) == (1, 5, 2)
        return diloco._commons[0].values.tolist()  # type: ignore[no-any-return]

    assert on_all(2, part) == [[14.0 - delay] * 4] * 2


def test_another_plan_is_refused_at_the_beginning() -> None:
    async def part(pg: ProcessGroup) -> None:
        with pytest.raises(UsageError, match="has other arrays, or another plan"):
            await DiLoCo(pg, weights(), sync_every=4, outer_lr=0.7 + 0.1 * pg.rank)

    on_all(2, part)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"sync_every": 5, "fragments": 2}, "not a multiple of 2 fragments"),
        ({"fragments": [[0, 1]]}, "must have each of the 4 arrays"),
        ({"mix": 2}, "mix must be a number, between 0 and 1, got 2"),
        ({"sync_every": 0}, "sync_every must be at least 1"),
        ({"sync_every": "10"}, "sync_every must be an integer, got '10'"),
        ({"outer_lr": "fast"}, "outer_lr must be a number, at least 0"),
        ({"outer_momentum": 1.5}, "outer_momentum must be a number, between 0 and 1"),
        ({"fragments": 9}, "4 arrays cannot be dealt out to 9 fragments"),
        ({"delay": None}, "delay must be an integer"),
        ({"state": np.ones(3)}, "state is a single array. Pass a list"),
        ({"codec": "int3"}, "codec must be"),
        ({"elastic": True}, "never change|cannot"),
    ],
)
def test_what_has_no_meaning_is_refused(more: dict[str, Any], match: str) -> None:
    async def part(pg: ProcessGroup) -> None:
        sub = pg
        if "elastic" in more:
            made = await pg.new_group([0, 1])
            assert made is not None
            sub = made
        with pytest.raises(UsageError, match=match if "elastic" not in more else "."):
            DiLoCo(sub, weights(), **more)
        with pytest.raises(UsageError, match="LocalSGD has no outer_lr"):
            LocalSGD(pg, weights(), outer_lr=1.0)
        with pytest.raises(UsageError, match=r"arrays is a single array. Pass a list: DiLoCo\(pg, \["):
            DiLoCo(pg, np.ones((3, 4)))
        with pytest.raises(UsageError, match=r"pass real floating arrays"):
            DiLoCo(pg, [np.ones(3, np.int32)])
        unready = DiLoCo(pg, weights())
        with pytest.raises(UsageError, match="may not have the common values"):
            await unready.step()
        with pytest.raises(UsageError, match="only with elastic=True"):
            await unready.admit()
        await pg.barrier()

    on_all(2, part)


def test_newcomers_do_not_come_in_the_middle_of_an_exchange() -> None:
    async def part(pg: ProcessGroup) -> None:
        diloco = await DiLoCo(pg, weights(), sync_every=2, delay=1, elastic=True)
        for _ in range(2):
            await diloco.step()
        with pytest.raises(UsageError, match="an exchange is under way"):
            await diloco.admit()
        await diloco.step()
        assert await diloco.admit() == 0

    on_all(2, part)


def test_it_goes_on_from_what_was_saved() -> None:
    async def part(pg: ProcessGroup) -> Any:
        mine = weights()
        diloco = await DiLoCo(pg, mine, sync_every=2, codec="int8")
        saved: Any = None
        for step in range(1, 7):
            move(mine, pg.rank, step)
            await diloco.step()
            if step == 2:
                saved, at = diloco.state_dict(), [one.copy() for one in mine]
        other = DiLoCo(pg, at, sync_every=2, codec="int8")
        other.load_state_dict(saved)
        await other
        for step in range(3, 7):
            move(at, pg.rank, step)
            await other.step()
        assert (other.steps, other.exchanges) == (6, 3)
        return [one.tobytes() for one in mine], [one.tobytes() for one in at]

    for straight, resumed in on_all(2, part):
        assert straight == resumed


@given(st.lists(st.tuples(st.integers(0, 1), st.just(9), *[st.integers(0, 2)] * 3), min_size=1, max_size=7))
def test_whose_values_all_shall_have(rows: list[tuple[int, ...]]) -> None:
    """Those of the majority of those that are furthest, by exchanges and steps."""
    source = source_of(rows)
    most = max((row[2:4] for row in rows if row[0]), default=(0, 0))
    known = [row for row in rows if row[0] and row[2:4] == most]
    if not known:
        assert source == 0
    elif source is None:
        assert len(set(rows)) == 1
    else:
        assert rows[source] in known
        assert known.count(rows[source]) == max(map(known.count, known))


def test_torch_parameters() -> None:
    torch = pytest.importorskip("torch")

    async def part(pg: ProcessGroup) -> Any:
        torch.manual_seed(pg.rank)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        diloco = await DiLoCo(pg, model.parameters(), sync_every=3)
        for step in range(6):
            x = torch.full((4, 3), float(pg.rank + step + 1))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            await diloco.step()
        return [parameter.detach().numpy().tobytes() for parameter in model.parameters()]

    first, second = on_all(2, part)
    assert first == second


def test_several_awaits_of_it() -> None:
    async def part(pg: ProcessGroup) -> None:
        diloco = DiLoCo(pg, weights(pg.rank))
        assert await diloco is diloco
        assert await diloco is diloco
        await asyncio.sleep(0)

    on_all(2, part)


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("who", [{1}, {0, 1, 2}])
@pytest.mark.parametrize("delay", [0, 1])
def test_a_cancelled_step_is_done_all_the_same(turns: int, who: set[int], delay: int) -> None:
    """A part of an exchange on one rank would be a mismatch for all."""

    async def part(pg: ProcessGroup) -> Any:
        arrays = weights()
        diloco = await DiLoCo(pg, arrays, sync_every=2, delay=delay, outer_lr=0.7, outer_momentum=0.9)
        cancelled = 0
        for step in range(1, 9):
            move(arrays, pg.rank, step)
            task = asyncio.ensure_future(diloco.step())
            if step in (4, 5) and pg.rank in who:
                for _ in range(turns):
                    await asyncio.sleep(0)
                cancelled += task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert cancelled or pg.rank not in who
        return [one.values.tobytes() for one in diloco._commons]

    plain = on_all(3, _undisturbed(delay))
    assert on_all(3, part) == plain


@pytest.mark.parametrize("codec", [None, "int8"])
@pytest.mark.parametrize("elastic", [False, True])
def test_an_exchange_that_nobody_applies_fails_without_a_word(codec: str | None, elastic: bool) -> None:
    """A rank's own step is done, whoever died before it, and so it is at the end of the program."""

    async def part(pg: ProcessGroup) -> int:
        arrays = weights()
        diloco = await DiLoCo(pg, arrays, sync_every=2, delay=1, codec=codec, elastic=elastic)
        await diloco.step()
        if pg.rank == 1:
            pg.abort("enough")
            return 0
        await asyncio.sleep(1)  # the others know it, and the exchange fails when it begins
        await diloco.step()
        return diloco.steps

    assert on_all(3, part) == [2, 0, 2]


def _undisturbed(delay: int) -> Callable[[ProcessGroup], Awaitable[Any]]:
    async def part(pg: ProcessGroup) -> Any:
        arrays = weights()
        diloco = await DiLoCo(pg, arrays, sync_every=2, delay=delay, outer_lr=0.7, outer_momentum=0.9)
        for step in range(1, 9):
            move(arrays, pg.rank, step)
            await diloco.step()
        return [one.values.tobytes() for one in diloco._commons]

    return part
