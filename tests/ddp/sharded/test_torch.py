"""ShardedOptimizer over torch's optimisers: the bits of a run that is not sharded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import CheckpointError, UsageError
from aiodist.ddp import GradientSync, ShardedOptimizer
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.testing.spmd import spmd
from tests.levels import COSTLY, few
from tests.support.chaos import Chaos

torch = pytest.importorskip("torch")

ELEMENTWISE: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1}),
    ("Adam", {"lr": 0.01, "amsgrad": True}),
    ("AdamW", {"lr": 0.01}),
    ("Adagrad", {"lr": 0.01}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Rprop", {}),
    ("ASGD", {}),
]


def on_all(size: int, part: Callable[[ProcessGroup], Awaitable[Any]]) -> list[Any]:
    return run_virtual(run_cluster(size, part))


def model() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3).double())


def fill(parameters: Any, step: int, ranks: list[int]) -> None:
    """Gradients of some ranks, averaged; eighths, so that the average is exact."""
    for index, p in enumerate(parameters):
        count = p.numel()
        some = [(torch.arange(count) % 11 - 5 + rank + step - index) / 8 for rank in ranks]
        p.grad = (sum(some) / len(some)).to(p.dtype).reshape(p.shape)


def bits(parameters: Any) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in parameters]


@pytest.mark.parametrize(("name", "defaults"), ELEMENTWISE)
@pytest.mark.parametrize("whole", [False, True])
def test_it_gives_the_bits_of_the_optimizer_alone(name: str, defaults: dict[str, Any], whole: bool) -> None:
    kind = getattr(torch.optim, name)
    plain = list(model().parameters())
    reference = kind(plain, **defaults)
    for step in range(6):
        fill(plain, step, [0, 1, 2, 3])
        reference.step()

    async def part(pg: ProcessGroup) -> list[bytes]:
        mine = list(model().parameters())
        optimizer = await ShardedOptimizer(pg, mine, kind, whole=whole, redundancy=1, **defaults)
        for step in range(6):
            fill(mine, step, [pg.rank])
            await optimizer.step()
        optimizer.zero_grad()
        assert all(p.grad is None for p in mine)
        return bits(mine)

    assert all(one == bits(plain) for one in on_all(4, part))


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_optimizers_of_shapes_need_whole_arrays(name: str) -> None:
    kind = getattr(torch.optim, name)
    shapes = [(6, 4), (3, 8), (5, 5), (2, 9)]

    def fresh() -> list[Any]:
        return [torch.nn.Parameter(torch.ones(shape).cumsum(1) / 4) for shape in shapes]

    plain = fresh()
    reference = kind(plain)
    for step in range(4):
        fill(plain, step, [0, 1])
        reference.step()

    async def part(pg: ProcessGroup) -> list[bytes]:
        with pytest.raises(UsageError, match=f"{name} looks at an array's shape.*whole=True"):
            ShardedOptimizer(pg, fresh(), kind)
        mine = fresh()
        optimizer = await ShardedOptimizer(pg, mine, kind, whole=True)
        for step in range(4):
            fill(mine, step, [pg.rank])
            await optimizer.step()
        return bits(mine)

    assert all(one == bits(plain) for one in on_all(2, part))


def test_other_groups_of_parameters_are_refused_on_all_ranks() -> None:
    """A parameter of which each rank had a piece got the rates of both groups, each in some elements."""

    async def part(pg: ProcessGroup) -> None:
        mine = [torch.nn.Parameter(torch.full((4,), 1.0 + pg.rank)) for _ in range(3)]
        groups = [{"params": mine[: 1 + pg.rank], "lr": 1.0}, {"params": mine[1 + pg.rank :], "lr": 0.5}]
        with pytest.raises(UsageError, match=f"rank {1 - pg.rank} has other arrays, or another plan, than"):
            await ShardedOptimizer(pg, groups, torch.optim.SGD, lr=0.1)
        assert all(one.eq(1.0 + pg.rank).all() for one in mine)

    on_all(2, part)


def test_groups_and_schedulers_and_frozen_parameters() -> None:
    def groups(own: list[Any]) -> list[dict[str, Any]]:
        return [{"params": own[:2], "lr": 0.5}, {"params": own[2:], "weight_decay": 0.1}]

    def fresh() -> list[Any]:
        own = list(model().parameters())
        own[1].requires_grad_(False)
        return own

    plain = fresh()
    reference = torch.optim.Adam(groups(plain), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(reference, 2, 0.5)
    for step in range(5):
        fill(plain, step, [0, 1, 2, 3])
        plain[1].grad = None
        reference.step()
        schedule.step()

    async def part(pg: ProcessGroup) -> list[bytes]:
        mine = fresh()
        with torch.no_grad():
            mine[1] += pg.rank  # frozen, and the same on all ranks afterwards
        optimizer = await ShardedOptimizer(pg, groups(mine), torch.optim.Adam, lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 2, 0.5)
        for step in range(5):
            fill(mine, step, [pg.rank])
            await optimizer.step()
            schedule.step()
        with pytest.raises(UsageError, match="index 1 names no array that is trained"):
            optimizer.ready(1, mine[1])
        return bits(mine)

    assert all(one == bits(plain) for one in on_all(4, part))


def test_gradients_leave_in_the_backward_pass() -> None:
    async def part(pg: ProcessGroup) -> list[bytes]:
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        early, late = [[p.detach().clone().requires_grad_() for p in net.parameters()] for _ in range(2)]
        for own, hooked in ((early, True), (late, False)):
            optimizer = await ShardedOptimizer(pg, own, torch.optim.SGD, lr=0.1, bucket_cap_mb=1e-6)
            for index, p in enumerate(own):
                if hooked:
                    p.register_post_accumulate_grad_hook(lambda p, i=index, to=optimizer: to.ready(i, p.grad))
            x = torch.full((3, 4), float(pg.rank + 1))
            loss = (x @ own[0].T + own[1]) @ own[2].T + own[3]
            loss.square().mean().backward()
            if hooked:
                assert len(optimizer._works) == 4
            await optimizer.step()
        return bits(early) + bits(late)

    for one in on_all(2, part):
        assert one[:4] == one[4:]


def test_halves() -> None:
    async def part(pg: ProcessGroup) -> list[Any]:
        mine = [torch.nn.Parameter(torch.arange(9.0).bfloat16()), torch.nn.Parameter(torch.ones(4).half())]
        optimizer = await ShardedOptimizer(pg, mine, torch.optim.SGD, lr=0.5, momentum=0.5, max_norm=1e3)
        for _ in range(3):
            mine[0].grad = torch.full((9,), float(pg.rank)).bfloat16()
            mine[1].grad = torch.full((4,), float(pg.rank)).half()
            await optimizer.step()
        return [p.float().tolist() for p in mine]

    # velocity 0.5, 0.75, 0.875, of gradient 0.5
    moved = 0.5 * (0.5 + 0.75 + 0.875)
    expected = [(torch.arange(9.0) - moved), torch.ones(4) - moved]
    for one in on_all(2, part):
        assert np.allclose(one[0], expected[0], atol=0.04) and np.allclose(one[1], expected[1], atol=1e-3)


def test_classes_that_cannot_be_sharded_are_refused() -> None:
    async def part(pg: ProcessGroup) -> None:
        own = [torch.nn.Parameter(torch.ones(4, 4))]
        with pytest.raises(UsageError, match="LBFGS cannot be sharded: its step needs a closure"):
            ShardedOptimizer(pg, own, torch.optim.LBFGS, whole=True)
        with pytest.raises(UsageError, match="SparseAdam cannot be sharded"):
            ShardedOptimizer(pg, own, torch.optim.SparseAdam)
        with pytest.raises(ValueError, match="Invalid learning rate"):
            ShardedOptimizer(pg, own, torch.optim.SGD, lr=-1.0)
        with pytest.raises(TypeError, match="speed"):
            ShardedOptimizer(pg, own, torch.optim.SGD, speed=1.0)
        optimizer = await ShardedOptimizer(pg, own, torch.optim.SGD)
        with pytest.raises(UsageError, match="1 of 1 gradients are missing: 0"):
            await optimizer.step()

    on_all(2, part)


@pytest.mark.slow(COSTLY)
@spmd(world_size=3)
async def test_on_one_host_it_gives_the_bits_of_gradient_sync(pg: ProcessGroup) -> None:
    """Also where averages are rounded."""

    def fresh() -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        return [torch.nn.Parameter(torch.randn(count, generator=generator)) for count in (7, 300_000, 1000)]

    def gradients(step: int) -> list[Any]:
        generator = torch.Generator().manual_seed(10 * step + pg.rank)
        return [torch.randn(p.shape, generator=generator) for p in fresh()]

    plain, mine = fresh(), fresh()
    sync = await GradientSync(pg, plain)
    reference = torch.optim.AdamW(plain, lr=0.01)
    optimizer = await ShardedOptimizer(pg, mine, torch.optim.AdamW, lr=0.01, redundancy=1)
    for step in range(3):
        for index, gradient in enumerate(gradients(step)):
            sync.ready(index, gradient)
        for p, average in zip(plain, await sync.finish(), strict=True):
            p.grad = average.clone()
        reference.step()
        await optimizer.step(gradients(step))
    assert bits(mine) == bits(plain)


def test_a_state_of_other_groups_of_parameters_is_refused_before_anything_changes() -> None:
    def parameters(value: float) -> list[Any]:
        return [torch.nn.Parameter(torch.full((4,), value)) for _ in range(2)]

    async def main(pg: ProcessGroup) -> None:
        one = await ShardedOptimizer(pg, parameters(100.0), torch.optim.SGD, lr=1.0)
        saved = {**one.state_dict(), "steps": 50}
        mine = parameters(1.0)
        groups = [{"params": [each]} for each in mine]
        optimizer = await ShardedOptimizer(pg, groups, torch.optim.SGD, lr=1.0)
        for wanted in (0.0, -1.0):
            for number, parameter in enumerate(mine):
                parameter.grad = torch.ones(4)
                assert float(parameter.detach()[0]) == wanted + 1, number
            assert await optimizer.step()
            assert all(float(parameter.detach()[0]) == wanted for parameter in mine)
            with pytest.raises(CheckpointError, match=r"has 1 groups of parameters, and here are 2"):
                optimizer.load_state_dict(saved)
        assert optimizer.steps == 2

    on_all(2, main)


FORMS: dict[str, Callable[[float], Any]] = {
    "number": float,
    "scalar": np.float32,
    "array": np.array,
    "tensor": torch.tensor,
}


def options_of(optimizer: ShardedOptimizer) -> list[Any]:
    return [(type(group["lr"]), float(group["lr"])) for group in optimizer.optimizer.param_groups]


@pytest.mark.parametrize("form", FORMS)
def test_options_are_saved_in_any_form(form: str) -> None:
    made = FORMS[form]

    async def part(pg: ProcessGroup) -> None:
        async def fresh() -> tuple[list[Any], ShardedOptimizer]:
            mine = [torch.nn.Parameter(torch.ones(5)) for _ in range(2)]
            groups = [{"params": [one]} for one in mine]
            return mine, await ShardedOptimizer(pg, groups, torch.optim.SGD, lr=made(0.5))

        _, first = await fresh()
        for group, rate in zip(first.optimizer.param_groups, (0.25, 0.0), strict=True):
            group["lr"] = made(rate)  # as a schedule does
        mine, second = await fresh()
        second.load_state_dict(first.state_dict())
        await second
        assert options_of(second) == options_of(first) == [(type(made(0.5)), 0.25), (type(made(0.5)), 0.0)]
        for p in mine:
            p.grad = torch.ones(5)
        await second.step()
        assert [p.detach().tolist() for p in mine] == [[0.75] * 5, [1.0] * 5]

    on_all(1, part)


@pytest.mark.parametrize("form", few(FORMS, ["tensor"]))
def test_newcomers_get_options_in_any_form(form: str) -> None:
    chaos, steps, seen = Chaos(1), 8, list[int]()

    async def train(pg: ProcessGroup) -> list[Any]:
        mine = [torch.nn.Parameter(torch.zeros(6))]
        optimizer = await ShardedOptimizer(pg, mine, torch.optim.SGD, lr=FORMS[form](0.5), elastic=True)
        while optimizer.steps < steps:
            if optimizer.steps == 3 and not chaos.joined:
                chaos.join(train, 30.0)
            await asyncio.sleep(0.05)
            mine[0].grad = torch.ones(6)
            if await optimizer.step() and optimizer.steps == 2:
                optimizer.optimizer.param_groups[0]["lr"] = FORMS[form](0.0)  # nothing moves from now on
        seen.append(optimizer.pg.size)
        return [*options_of(optimizer), *mine[0].tolist()]

    results: list[Any] = run_virtual(run_cluster(2, train, processes=chaos))
    results.append(chaos.joined[0].result())
    assert results == [[(type(FORMS[form](0.0)), 0.0), *[-1.0] * 6]] * 3 and seen == [3, 3, 3]


@pytest.mark.parametrize("form", few(["array", "tensor"], ["tensor"]))
@pytest.mark.parametrize("joins", [False, True])
def test_an_option_that_the_program_keeps_and_changes_stays_its_own(form: str, joins: bool) -> None:
    """As with torch alone; also when members die or join."""
    chaos, steps = Chaos(1), 6

    async def train(pg: ProcessGroup) -> float:
        mine = [torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))]
        rate = np.array(1.0) if form == "array" else torch.tensor(1.0, dtype=torch.float64)
        optimizer = await ShardedOptimizer(pg, mine, torch.optim.SGD, lr=rate, elastic=True, redundancy=1)
        while optimizer.steps < steps:
            rate[...] = 0.5**optimizer.steps
            if optimizer.steps == 2 and joins and not chaos.joined:
                chaos.join(train, 30.0)
            if optimizer.steps == 2 and not joins and pg.rank == 2:
                chaos.crash(2)
            await asyncio.sleep(0.05)
            mine[0].grad = torch.ones(6, dtype=torch.float64)
            await optimizer.step()
        assert optimizer.optimizer.param_groups[0]["lr"] is rate
        return float(mine[0].detach()[0])

    found: list[Any] = run_virtual(run_cluster(3, train, processes=chaos, return_exceptions=True))
    if joins:
        found.append(chaos.joined[0].result())
    else:
        del found[2]
    assert found == [-sum(0.5**step for step in range(steps))] * len(found)


def of_schedule(kind: str, optimizer: Any) -> Any:
    schedulers = torch.optim.lr_scheduler
    if kind == "StepLR":
        return schedulers.StepLR(optimizer, 3, 0.5)
    if kind == "CosineAnnealingLR":
        return schedulers.CosineAnnealingLR(optimizer, 20)
    return schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step))


@pytest.mark.parametrize("kind", few(["StepLR", "CosineAnnealingLR", "LambdaLR"], ["StepLR"]))
def test_newcomers_go_on_with_a_schedule_whose_counter_is_made_from_the_steps(kind: str) -> None:
    """So docs/sharded-optimizer.md says it."""
    chaos, steps, seen = Chaos(1), 16, list[int]()

    async def train(pg: ProcessGroup) -> list[float]:
        mine = [torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))]
        optimizer = ShardedOptimizer(pg, mine, torch.optim.SGD, lr=1.0, elastic=True, redundancy=1)
        schedule = of_schedule(kind, optimizer.optimizer)
        await optimizer
        while optimizer.steps < steps:
            if optimizer.steps == 4 and not chaos.joined:
                chaos.join(train, 30.0)
            await asyncio.sleep(0.05)
            mine[0].grad = torch.arange(6, dtype=torch.float64)
            if await optimizer.step():
                schedule.last_epoch = optimizer.steps - 1
                schedule.step()
        seen.append(optimizer.pg.size)
        return mine[0].tolist()  # type: ignore[no-any-return]

    alone = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    reference = torch.optim.SGD([alone], lr=1.0)
    schedule = of_schedule(kind, reference)
    for _ in range(steps):
        alone.grad = torch.arange(6, dtype=torch.float64)
        reference.step()
        schedule.step()
    results: list[Any] = run_virtual(run_cluster(2, train, processes=chaos))
    assert [*results, chaos.joined[0].result()] == [alone.tolist()] * 3 and seen == [3, 3, 3]


def test_a_newcomer_with_a_schedule_of_its_own_is_told_before_a_step_counts() -> None:
    """Its counter is not an option, so it is not carried: two shares of one model were trained at different
    rates."""
    chaos, ended = Chaos(1), list[tuple[int, int, str, list[float]]]()

    async def train(pg: ProcessGroup) -> None:
        mine = [torch.nn.Parameter(torch.zeros(6))]
        optimizer = ShardedOptimizer(pg, mine, torch.optim.SGD, lr=1.0, elastic=True, redundancy=1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 10, 0.5)
        await optimizer
        try:
            while optimizer.steps < 30:
                if optimizer.steps == 4 and not chaos.joined:
                    chaos.join(train, 30.0)
                await asyncio.sleep(0.05)
                mine[0].grad = torch.ones(6)
                if await optimizer.step():
                    schedule.step()
        except UsageError as error:
            ended.append((optimizer.pg.rank, optimizer.steps, str(error), mine[0].tolist()))
            for group in optimizer.optimizer.param_groups:
                group["lr"] = 0.25
            await optimizer.step()  # alike, it goes on
            assert optimizer.steps == 11 and mine[0].tolist() == [-10.25] * 6

    run_virtual(run_cluster(2, train, processes=chaos))
    chaos.joined[0].result()
    assert sorted(rank for rank, *_ in ended) == [0, 1, 2]
    for _, steps, error, values in ended:
        assert steps == 10 and values == [-10.0] * 6
        assert "the option 'lr' of parameter group 0 is not the same on all ranks: " in error
        assert "0.5 on ranks 0 and 1, 1.0 on rank 2" in error


@pytest.mark.parametrize("elastic", [False, True])
def test_other_options_are_told_on_all_ranks(elastic: bool) -> None:
    """Of the optimizer's; what a schedule notes beside them may be on one rank only."""

    async def part(pg: ProcessGroup) -> None:
        mine = [torch.nn.Parameter(torch.zeros(5)), torch.nn.Parameter(torch.zeros(3))]
        groups = [{"params": [one]} for one in mine]
        optimizer = await ShardedOptimizer(pg, groups, torch.optim.Adam, lr=1.0, elastic=elastic)
        rates = optimizer.optimizer.param_groups
        for one in mine:
            one.grad = torch.ones(one.shape)
        rates[1]["lr"] = 1 if pg.rank else torch.tensor(1.0)  # one value in three forms
        if pg.rank == 1:
            rates[0]["initial_lr"] = 1.0
        assert await optimizer.step()
        before = bits(mine)
        rates[1]["betas"] = (0.9, 0.5 + (pg.rank == 2))
        with pytest.raises(UsageError) as told:
            await optimizer.step()
        assert "'betas' of parameter group 1" in str(told.value)
        assert "[0.9, 0.5] on ranks 0, 1 and 3, [0.9, 1.5] on rank 2" in str(told.value)
        assert optimizer.steps == 1 and bits(mine) == before
        rates[1]["betas"] = (0.9, 0.5)
        assert await optimizer.step() and optimizer.steps == 2

    on_all(4, part)


def test_other_options_are_told_also_where_a_member_dies() -> None:
    """Its death ends the step before the options are compared: they are when the others meet."""
    chaos, said = Chaos(1), list[str]()

    async def train(pg: ProcessGroup) -> None:
        me, mine = pg.rank, [torch.nn.Parameter(torch.zeros(6))]
        optimizer = await ShardedOptimizer(pg, mine, torch.optim.SGD, lr=1.0, elastic=True, redundancy=1)
        while optimizer.steps < 3:
            mine[0].grad = torch.ones(6)
            await optimizer.step()
        optimizer.optimizer.param_groups[0]["lr"] = 0.5 + me
        if me == 2:
            chaos.crash(2)
        await asyncio.sleep(0.05)
        mine[0].grad = torch.ones(6)
        with pytest.raises(UsageError, match=r"'lr' of .*: 0\.5 on rank 0, 1\.5 on rank 1"):
            await optimizer.step()
        optimizer.optimizer.param_groups[0]["lr"] = 0.5
        await optimizer
        assert optimizer.steps == 3
        mine[0].grad = torch.ones(6)
        await optimizer.step()
        said.append(str(mine[0].tolist()))

    run_virtual(run_cluster(3, train, processes=chaos, return_exceptions=True))
    assert said == [str([-3.5] * 6)] * 2


def test_options_that_cannot_be_saved_are_refused_before_anything_is_sent() -> None:
    async def part(pg: ProcessGroup) -> None:
        mine = [torch.nn.Parameter(torch.ones(5))]
        with pytest.raises(UsageError, match=r"the option 'note' of a parameter group is"):
            ShardedOptimizer(pg, [{"params": mine, "note": object()}], torch.optim.SGD, lr=1.0)
        optimizer = await ShardedOptimizer(pg, mine, torch.optim.SGD, lr=1.0)
        optimizer.optimizer.param_groups[0]["note"] = object()
        mine[0].grad = torch.ones(5)
        issued = pg.issued_count()
        with pytest.raises(UsageError, match=r"the option 'note' of a parameter group is"):
            await optimizer.step()
        with pytest.raises(UsageError, match=r"the option 'note' of a parameter group is"):
            optimizer.state_dict()
        assert pg.issued_count() == issued and optimizer.steps == 0
        del optimizer.optimizer.param_groups[0]["note"]
        assert await optimizer.step() and mine[0].tolist() == [0.0] * 5

    on_all(2, part)
