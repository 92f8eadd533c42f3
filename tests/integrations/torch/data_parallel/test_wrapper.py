"""What goes wrong with `dist.DistributedDataParallel`: each is said at once, and the next step is right."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import threading
from importlib.util import find_spec
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.levels import COSTLY

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def torch_and_linear() -> tuple[Any, Any]:
    """torch, and a module that is the same on all ranks. torch is imported by the ranks alone."""
    import torch

    torch.manual_seed(3)
    return torch, torch.nn.Linear(4, 3)


def given(torch: Any, rank: int, step: int = 0) -> Any:
    """The data of a rank in a step: nobody else's."""
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(1000 * step + rank))


def mean_gradient(torch: Any, pg: ProcessGroup, step: int = 0) -> Any:
    """The averaged gradient of the weight of a Linear(4, 3) whose outputs are summed up."""
    return (sum(given(torch, rank, step).sum(0) for rank in range(pg.size)) / pg.size).expand(3, 4)


async def steps_on(torch: Any, ddp: Any, pg: ProcessGroup, weight: Any) -> None:
    """Check that a step is right."""
    ddp.zero_grad()
    ddp(given(torch, pg.rank, 77)).sum().backward()
    assert await ddp.sync()
    assert torch.allclose(weight.grad, mean_gradient(torch, pg, 77), atol=1e-6)


async def a_step_whose_sync_is_forgotten_or_too_much(pg: ProcessGroup) -> None:
    torch, _ = torch_and_linear()
    for static in (False, True):
        module = torch_and_linear()[1]
        ddp = await dist.DistributedDataParallel(module, pg, static_graph=static)
        with pytest.raises(dist.UsageError, match="no backward pass"):
            await ddp.sync()
        ddp(given(torch, pg.rank)).sum().backward()
        with pytest.raises(dist.UsageError, match="was not followed by sync"):
            ddp(given(torch, pg.rank))
        with torch.no_grad():
            ddp(given(torch, pg.rank))  # to look at what it gives
        with pytest.raises(dist.UsageError, match="before the last step was over"):
            await ddp.join()
        with ddp.no_sync(), pytest.raises(dist.UsageError, match="came after the pass that sends"):
            ddp(given(torch, pg.rank)).sum().backward()
        first, second = await asyncio.gather(ddp.sync(), ddp.sync(), return_exceptions=True)
        assert first is True
        assert isinstance(second, dist.UsageError)
        assert "in another task" in str(second)
        ended = await asyncio.gather(ddp.join(), ddp.join(), return_exceptions=True)
        assert ended[0] is None and isinstance(ended[1], dist.UsageError)
        await steps_on(torch, ddp, pg, module.weight)
        loss = ddp(given(torch, pg.rank)).sum()
        loss.backward(retain_graph=True)
        if not static:
            with pytest.raises(dist.UsageError, match="came once more"):
                loss.backward()
        await ddp.sync()
        await steps_on(torch, ddp, pg, module.weight)


async def gradients_that_do_not_come(pg: ProcessGroup) -> None:
    torch, _ = torch_and_linear()
    module = torch.nn.ModuleDict({"one": torch.nn.Linear(4, 3), "never": torch.nn.Linear(4, 3)})
    module.forward = module["one"].forward
    ddp = await dist.DistributedDataParallel(module, pg)
    ddp(given(torch, pg.rank)).sum().backward()
    with pytest.raises(dist.UsageError, match=r"2 parameters got no gradient: never\.weight, never\.bias"):
        await ddp.sync()
    assert torch.allclose(module["one"].weight.grad, mean_gradient(torch, pg), atol=1e-6)


async def a_backward_pass_that_raises_or_is_cancelled(pg: ProcessGroup) -> None:
    torch, _ = torch_and_linear()

    class Late(torch.autograd.Function):  # type: ignore[misc, name-defined]
        wrong = False

        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            entered.set()
            assert may_go_on.wait(30)
            if Late.wrong:
                raise MemoryError("no room")
            return gradient

    for finds in (False, True):
        entered, may_go_on = threading.Event(), threading.Event()
        first, second = torch_and_linear()[1], torch.nn.Linear(3, 3)
        module = torch.nn.Sequential(first, second)
        module.forward = lambda x, first=first, second=second: second(Late.apply(first(x)))
        ddp = await dist.DistributedDataParallel(module, pg, find_unused_parameters=finds)
        Late.wrong = False
        run = asyncio.ensure_future(ddp.backward(ddp(given(torch, pg.rank)).sum()))
        await asyncio.to_thread(entered.wait, 30)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        asyncio.get_running_loop().call_soon(may_go_on.set)
        assert await ddp.sync()  # waits for the thread
        row = second.weight.detach().sum(0)  # what arrives at the first layer's output
        assert torch.allclose(first.weight.grad, row[:, None] * mean_gradient(torch, pg)[:1], atol=1e-6)
        Late.wrong = True
        ddp.zero_grad()
        with pytest.raises(MemoryError):
            ddp(given(torch, pg.rank)).sum().backward()
        with pytest.raises(dist.UsageError, match="also after one that raised"):
            ddp(given(torch, pg.rank))
        if finds:
            assert await ddp.sync()
        else:
            with pytest.raises(dist.UsageError, match="2 parameters got no gradient"):
                await ddp.sync()
        Late.wrong = False
        ddp.zero_grad()
        ddp(given(torch, pg.rank)).sum().backward()
        assert await ddp.sync()
        assert torch.allclose(first.weight.grad, row[:, None] * mean_gradient(torch, pg)[:1], atol=1e-6)


async def a_sync_that_is_cancelled_is_called_again(pg: ProcessGroup) -> None:
    torch, module = torch_and_linear()
    ddp = await dist.DistributedDataParallel(module, pg)
    for step in range(3):
        ddp.zero_grad()
        ddp(given(torch, pg.rank, step)).sum().backward()
        waits = asyncio.ensure_future(ddp.sync())
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        with pytest.raises(dist.UsageError, match="was not followed by sync"):
            ddp(given(torch, pg.rank, step))
        assert await ddp.sync()
        assert torch.allclose(module.weight.grad, mean_gradient(torch, pg, step), atol=1e-6)


async def comm_hooks_that_give_something_else(pg: ProcessGroup) -> None:
    torch, module = torch_and_linear()
    ddp = await dist.DistributedDataParallel(module, pg)
    chosen: list[Any] = []

    async def summed(bucket: Any) -> Any:
        return chosen[-1](await pg.all_reduce(bucket.buffer().clone()) / pg.size)

    def hook(_: None, bucket: Any) -> Any:
        return 3 if chosen[-1] is None else summed(bucket)

    def fails(_: Any) -> Any:
        raise ValueError("one time")

    ddp.register_comm_hook(None, hook)
    with pytest.raises(dist.UsageError, match="one comm hook"):
        ddp.register_comm_hook(None, hook)
    wrong = [
        (None, dist.UsageError, "gave 3, which cannot be awaited. Write it as `async def`"),
        (lambda mean: mean[:3], dist.UsageError, "gave 3 elements for a bucket of 15"),
        (lambda mean: torch.cat([mean, mean]), dist.UsageError, "gave 30 elements for a bucket of 15"),
        (lambda mean: 7, dist.UsageError, "gave 7 for a bucket of 15"),
        (fails, ValueError, "one time"),
    ]
    for makes, kind, words in wrong:
        chosen.append(makes)
        ddp.zero_grad()
        ddp(given(torch, pg.rank)).sum().backward()
        with pytest.raises(kind, match=words):
            await ddp.sync()
    for makes in (
        lambda mean: mean,
        lambda mean: torch.stack([mean, torch.full_like(mean, 99.0)], 1)[:, 0],
        lambda mean: mean.double().reshape(3, 5),
    ):
        chosen.append(makes)
        await steps_on(torch, ddp, pg, module.weight)


async def modules_and_options_that_differ_or_do_not_fit(pg: ProcessGroup) -> None:
    torch, _ = torch_and_linear()
    linear = torch.nn.Linear
    with pytest.raises(dist.UsageError, match=rf"here is weight: torch.float32 \[{3 + pg.rank}, 4\]"):
        await dist.DistributedDataParallel(linear(4, 3 + pg.rank), pg)
    frozen = linear(4, 3)
    frozen.bias.requires_grad_(pg.rank == 0)
    with pytest.raises(dist.UsageError, match="bias with requires_grad"):
        await dist.DistributedDataParallel(frozen, pg)
    options: list[tuple[str, Any]] = [
        ("find_unused_parameters", pg.rank == 0),
        ("static_graph", pg.rank == 0),
        ("broadcast_buffers", pg.rank == 0),
        ("divide_by_initial_world_size", pg.rank == 0),  # in `join` each rank had averages of its own
        ("bucket_cap_mb", 1 + pg.rank),
    ]
    for option, value in options:
        with pytest.raises(
            dist.UsageError, match=f"here is {option}={value}, on rank {1 - pg.rank} {option}"
        ):
            await dist.DistributedDataParallel(linear(4, 3), pg, **{option: value})
    with pytest.raises(dist.UsageError, match=r"state\[0\]: torch.float32"):
        await dist.DistributedDataParallel(linear(4, 3), pg, state=[torch.ones(1 + pg.rank)])
    with pytest.raises(dist.UsageError, match=r"must be tensors of torch, not 1\.0"):
        dist.DistributedDataParallel(linear(4, 3), pg, state=[1.0])
    with pytest.raises(dist.UsageError, match="no parameter with requires_grad"):
        dist.DistributedDataParallel(torch.nn.ReLU(), pg)
    with pytest.raises(dist.UsageError, match=r"takes a torch\.nn\.Module, not list"):
        dist.DistributedDataParallel([], pg)
    wrong: Any = [0]
    with pytest.raises(dist.UsageError, match="must be a ProcessGroup of aiodist, not list"):
        dist.DistributedDataParallel(linear(4, 3), wrong)
    caps: list[Any] = [0, -1, None, float("nan")]
    for cap in caps:
        with pytest.raises(dist.UsageError, match="bucket_cap_mb must be"):
            dist.DistributedDataParallel(linear(4, 3), pg, bucket_cap_mb=cap)
    expanded = linear(4, 3)
    expanded.register_buffer("wide", torch.ones(1).expand(5))
    with pytest.raises(dist.UsageError, match="buffer wide overlaps itself"):
        dist.DistributedDataParallel(expanded, pg)
    ddp = dist.DistributedDataParallel(linear(4, 3), process_group=pg)
    with pytest.raises(dist.UsageError, match="never shared"):
        ddp(given(torch, pg.rank)).sum().backward()
    with pytest.raises(dist.UsageError, match="never shared"):
        await ddp.sync()
    table = await dist.DistributedDataParallel(torch.nn.Embedding(5, 2, sparse=True), pg)
    with pytest.raises(dist.UsageError, match=r"of layout torch\.sparse_coo"):
        table(torch.tensor([1, 3])).sum().backward()


async def what_cannot_be_done_with_a_wrapper(pg: ProcessGroup) -> None:
    torch, module = torch_and_linear()
    ddp = await dist.DistributedDataParallel(module, pg)
    for again in (module, ddp):
        with pytest.raises(dist.UsageError, match="belongs to another wrapper"):
            dist.DistributedDataParallel(again, pg)
    for copies in (copy.deepcopy, pickle.dumps):
        with pytest.raises(dist.UsageError, match=r"Copy or save ddp\.module"):
            copies(ddp)
    assert torch.equal(copy.deepcopy(ddp.module).weight, module.weight)
    await steps_on(torch, ddp, pg, module.weight)
    ddp.zero_grad()
    ddp.double()
    with pytest.raises(dist.UsageError, match=r"is of torch\.float64, and was of torch\.float32"):
        ddp(given(torch, pg.rank).double()).sum().backward()
    del ddp, again
    again = await dist.DistributedDataParallel(module.float(), pg)
    await steps_on(torch, again, pg, module.weight)


async def backward_passes_in_threads(pg: ProcessGroup) -> None:
    torch, module = torch_and_linear()
    ddp = await dist.DistributedDataParallel(module, pg, gradient_as_bucket_view=True)
    turns = 0

    async def ticks() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(ticks())
    for step in range(20):
        ddp.zero_grad()
        await ddp.backward(ddp(given(torch, pg.rank, step)).sum())
        assert await ddp.sync()
        assert torch.allclose(module.weight.grad, mean_gradient(torch, pg, step), atol=1e-6)
    other.cancel()
    assert turns > 3


CASES = (
    a_step_whose_sync_is_forgotten_or_too_much,
    gradients_that_do_not_come,
    a_backward_pass_that_raises_or_is_cancelled,
    a_sync_that_is_cancelled_is_called_again,
    comm_hooks_that_give_something_else,
    modules_and_options_that_differ_or_do_not_fit,
    what_cannot_be_done_with_a_wrapper,
    backward_passes_in_threads,
)


@pytest.mark.slow(COSTLY)
@spmd(transport="shm")
async def test_each_mistake_is_said_at_once_and_the_next_step_is_right(pg: ProcessGroup) -> None:
    """In one job, since torch's import takes longest; the case that fails is the last that is printed."""
    for case in CASES:
        print(case.__name__)
        await case(pg)


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, exits={1: -9})
async def test_a_step_that_does_not_count_leaves_the_buffers_as_its_first_pass_found_them(
    pg: ProcessGroup,
) -> None:
    """Also those that were loaded behind an earlier pass, which no backward pass followed."""
    import torch

    module, me = torch.nn.BatchNorm1d(4), pg.rank
    ddp = await dist.DistributedDataParallel(module, pg, elastic=True)
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(me))
    ddp(inputs)
    module.running_mean.fill_(7.0)
    module.num_batches_tracked.fill_(5)
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = ddp(inputs).sum() + ddp(inputs).sum()  # two passes of one step
    assert module.num_batches_tracked == 7
    loss.backward()
    assert not await ddp.sync()
    assert module.running_mean.tolist() == [7.0] * 4 and module.num_batches_tracked == 5
