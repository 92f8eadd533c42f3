"""A job that trains modules by `dist.DistributedDataParallel` and by torch's, and compares the bits."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as c10d
from torch.nn.parallel import DistributedDataParallel as Torchs

import aiodist as dist

STEPS = 4
Made = Callable[[], torch.nn.Module]


class Branches(torch.nn.Module):  # type: ignore[misc]
    """Two branches, of which an input takes one or both; and one that nothing takes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        self.never = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, which: str = "12") -> torch.Tensor:
        """Add up what the branches give."""
        return sum((getattr(self, {"1": "one", "2": "two"}[name])(x) for name in which), torch.zeros(3))


class Shared(torch.nn.Module):  # type: ignore[misc]
    """One layer that is used three times, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.never = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer three times."""
        for _ in range(3):
            x = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False).tanh()
        return x


def plain() -> torch.nn.Module:
    """A module of several buckets of two dtypes, with buffers, and strides of its own."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
        torch.nn.BatchNorm2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 4 * 4, 5),
    )


def inputs(rank: int, step: int, *shape: int) -> torch.Tensor:
    """The data of a rank in a step: nobody else's."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(*shape, generator=generator)


def made(make: Made, rank: int) -> torch.nn.Module:
    """A module with values of this rank's own."""
    torch.manual_seed(17 + rank)
    return make()


def equal(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors are the same: bit by bit, where a sum of two ranks has only one order."""
    if c10d.get_world_size() == 2:
        return bool(torch.equal(mine, theirs))
    return bool(torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5))


def same(ours: torch.nn.Module, torchs: torch.nn.Module, what: str) -> None:
    """Check that parameters, gradients and buffers are the same."""
    for (name, mine), theirs in zip(ours.named_parameters(), torchs.parameters(), strict=True):
        assert equal(mine, theirs), (what, name, mine, theirs)
        assert (mine.grad is None) == (theirs.grad is None), (what, name)
        assert mine.grad is None or equal(mine.grad, theirs.grad), (what, name)
    for (name, mine), theirs in zip(ours.named_buffers(), torchs.buffers(), strict=True):
        assert equal(mine.float(), theirs.float()), (what, name, mine, theirs)


def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
    """An optimizer with momentum."""
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


async def check_steps(pg: Any, make: Made, shape: tuple[int, ...], what: str, **options: Any) -> None:
    """Train both for some steps."""
    torchs_options = {key: value for key, value in options.items() if key != "bucket_cap_mb"}
    torchs = Torchs(made(make, pg.rank), **torchs_options)
    ours = await dist.DistributedDataParallel(made(make, pg.rank), pg, **options)
    optimizers = sgd(torchs), sgd(ours)
    for step in range(STEPS):
        for module, optimizer in zip((torchs, ours), optimizers, strict=True):
            optimizer.zero_grad()
            loss = module(inputs(pg.rank, step, *shape)).square().mean()
            if module is ours and step % 2:
                await ours.backward(loss)
            else:
                loss.backward()
            if module is ours:
                assert await ours.sync()
        torch.nn.utils.clip_grad_norm_(torchs.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        # torch gives out the buffers before the next forward pass, not behind this one
        for mine, theirs in zip(ours.buffers(), torchs.buffers(), strict=True):
            c10d.broadcast(theirs, 0)
            assert equal(mine.float(), theirs.float())
        same(ours, torchs, f"{what}, step {step}")


async def check_no_sync(pg: Any, as_view: bool) -> None:
    """Gradients add up over two passes, and are averaged once; without zero_grad they go on adding up."""
    torchs = Torchs(made(plain, pg.rank), gradient_as_bucket_view=as_view)
    ours = await dist.DistributedDataParallel(made(plain, pg.rank), pg, gradient_as_bucket_view=as_view)
    for step in range(3):
        for module in (torchs, ours):
            with module.no_sync():
                module(inputs(pg.rank, 10 + step, 2, 3, 6, 6)).sum().backward()
            module(inputs(pg.rank, 20 + step, 2, 3, 6, 6)).square().sum().backward()
        await ours.sync()
        for mine, theirs in zip(ours.parameters(), torchs.parameters(), strict=True):
            assert equal(mine.grad, theirs.grad), (as_view, step)


async def check_unused(pg: Any, as_view: bool) -> None:
    """Ranks use different branches; what none uses keeps its gradient."""
    options: dict[str, Any] = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
    torchs = Torchs(made(Branches, pg.rank), **options)
    ours = await dist.DistributedDataParallel(made(Branches, pg.rank), pg, **options)
    optimizers = sgd(torchs), sgd(ours)
    for step, choice in enumerate(("12", "1", "2", "12", "1" if pg.rank else "2")):
        for module, optimizer in zip((torchs, ours), optimizers, strict=True):
            optimizer.zero_grad()
            module(inputs(pg.rank, step, 2, 4), choice).square().sum().backward()
            if module is ours:
                await ours.sync()
            optimizer.step()
        same(ours, torchs, f"unused, step {step}")


@contextlib.contextmanager
def refused(why: str) -> Iterator[None]:
    """A block that has to end by a `UsageError` with these words."""
    try:
        yield
    except dist.UsageError as error:
        if why not in str(error):
            raise
    else:
        raise AssertionError(f"nothing was said of: {why}")


async def check_missing(pg: Any) -> None:
    """A parameter without gradient is named, and the others have theirs."""
    ours = await dist.DistributedDataParallel(made(Branches, 0), pg)
    ours(inputs(pg.rank, 0, 2, 4), "1").sum().backward()
    with refused("4 parameters got no gradient: two.weight, two.bias, never.weight, never.bias"):
        await ours.sync()
    expected = sum(inputs(rank, 0, 2, 4).sum(0) for rank in range(pg.size)) / pg.size
    assert torch.allclose(ours.module.one.weight.grad, expected.expand(3, 4), atol=1e-6)
    with refused("no backward pass"):
        await ours.sync()
    loss = ours(inputs(pg.rank, 0, 2, 4)).sum() + ours.module.never(inputs(pg.rank, 1, 2, 4)).sum()
    loss.backward(retain_graph=True)
    with refused("the last step is not over"):
        await ours.join()
    with refused("came once more"):
        loss.backward()
    assert await ours.sync()


async def check_refused(pg: Any) -> None:
    """What is wrong with a module is said before anything is sent."""
    with refused(f"the modules differ: here is weight: torch.float32 [{3 + pg.rank}, 4]"):
        await dist.DistributedDataParallel(torch.nn.Linear(4, 3 + pg.rank), pg)
    with refused("no parameter with requires_grad"):
        dist.DistributedDataParallel(torch.nn.ReLU(), pg)
    with refused("takes a torch.nn.Module, not list"):
        dist.DistributedDataParallel([], pg)
    with refused("bucket_cap_mb must be"):
        dist.DistributedDataParallel(torch.nn.Linear(2, 2), pg, bucket_cap_mb=0)
    ours = dist.DistributedDataParallel(torch.nn.Linear(4, 2), pg)
    with refused("never shared"):
        ours(inputs(pg.rank, 0, 2, 4)).sum().backward()
    with refused("never shared"):
        await ours.sync()
    table = await dist.DistributedDataParallel(torch.nn.Embedding(5, 2, sparse=True), pg)
    with refused("of layout torch.sparse_coo"):
        table(torch.tensor([1, 3])).sum().backward()


async def check_join(pg: Any, by_all: bool) -> None:
    """Uneven inputs: as many steps as rank numbers; then all have the module of the longest."""
    make = lambda: torch.nn.Linear(4, 2)  # noqa: E731 - a maker of a module
    torchs = Torchs(made(make, pg.rank))
    ours = await dist.DistributedDataParallel(
        made(make, pg.rank), pg, divide_by_initial_world_size=by_all, broadcast_buffers=False
    )
    optimizers = sgd(torchs), sgd(ours)
    with torchs.join(divide_by_initial_world_size=by_all):
        for step in range(2 + 2 * pg.rank):
            optimizers[0].zero_grad()
            torchs(inputs(pg.rank, step, 3, 4)).square().sum().backward()
            optimizers[0].step()
    for epoch in range(2):
        for step in range(2 + 2 * pg.rank if epoch == 0 else 0):
            optimizers[1].zero_grad()
            ours(inputs(pg.rank, step, 3, 4)).square().sum().backward()
            await ours.sync()
            optimizers[1].step()
        await ours.join()
    for mine, theirs in zip(ours.parameters(), torchs.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5), by_all


async def check_hook(pg: Any) -> None:
    """A hook's averages are the gradients, and hooks run one after the other."""
    order: list[int] = []

    async def in_half(state: list[int], bucket: Any) -> torch.Tensor:
        state.append(bucket.index())
        half = (bucket.buffer() / pg.size).to(torch.bfloat16)
        await pg.all_reduce(half)
        await pg.barrier()
        state.append(bucket.index())
        assert [p.shape for p in bucket.parameters()] == [g.shape for g in bucket.gradients()]
        return half.to(torch.float32)

    ours = await dist.DistributedDataParallel(made(plain, pg.rank), pg, bucket_cap_mb=0.0001)
    ours.register_comm_hook(order, in_half)
    ours(inputs(pg.rank, 0, 2, 3, 6, 6)).square().sum().backward()
    local = [parameter.grad.clone() for parameter in ours.parameters()]
    await ours.sync()
    count = len(order) // 2
    assert count > 1
    assert order == [index for index in range(count) for _ in range(2)]
    for index, parameter in enumerate(ours.parameters()):
        rows = await pg.all_gather((local[index] / pg.size).to(torch.bfloat16))
        expected = rows.float().sum(0)
        assert torch.allclose(parameter.grad, expected, rtol=0.02, atol=0.02), index
    await ours.join()


async def main() -> None:
    """Run the checks."""
    c10d.init_process_group("gloo")
    async with await dist.init_process_group() as pg:
        image = (2, 3, 6, 6)
        for as_view in (False, True):
            view = {"gradient_as_bucket_view": as_view}
            await check_steps(pg, plain, image, f"plain {as_view}", bucket_cap_mb=0.001, **view)
            await check_steps(pg, Shared, (2, 4), f"static {as_view}", static_graph=True, **view)
            await check_no_sync(pg, as_view)
            await check_unused(pg, as_view)
        await check_missing(pg)
        await check_refused(pg)
        await check_join(pg, True)
        await check_join(pg, False)
        await check_hook(pg)
        sys.stdout.write("all the same\n")
    c10d.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
