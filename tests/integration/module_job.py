"""A job that trains modules by `dist.DistributedDataParallel` and by torch's, and compares the bits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
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
    """One layer that is used three times, and one never. Reentrant checkpoints give it three gradients."""

    reentrant = False

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.never = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer three times."""
        x = x.requires_grad_()
        for _ in range(3):
            x = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=self.reentrant).tanh()
        return x


class Reentrant(Shared):
    """Its gradients come one by one."""

    reentrant = True


class Beside(torch.nn.Module):  # type: ignore[misc]
    """A part of its loss is not in what it returns, nor can anybody find tensors in that."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.beside = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        self.idle = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        """Give a function of the output."""
        self.loss = self.beside(x).square().sum()
        main, _ = self.main(x), self.idle(x)
        return lambda: main


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


async def check_beside(pg: Any) -> None:
    """A loss that is not in the output counts, an output that is not in the loss does not."""
    ours = await dist.DistributedDataParallel(made(Beside, pg.rank), pg, find_unused_parameters=True)
    for step in range(3):
        ours.zero_grad()
        given = [inputs(rank, step, 2, 4) for rank in range(pg.size)]
        for _ in range(2):  # of the first nothing comes
            give = ours(given[pg.rank])
        (give().sum() + ours.module.loss).backward()
        local = ours.module.beside.weight.grad.clone()
        await ours.sync()
        rows = await pg.all_gather(local)
        assert torch.allclose(ours.module.beside.weight.grad, rows.sum(0) / pg.size, rtol=1e-5), step
        expected = sum(x.sum(0) for x in given) / pg.size
        assert torch.allclose(ours.module.main.weight.grad, expected.expand(3, 4), atol=1e-6), step
        assert ours.module.idle.weight.grad is None, step


async def check_kept(pg: Any, as_view: bool) -> None:
    """What no rank uses keeps its gradient; what was used in no_sync counts as used."""
    options: dict[str, Any] = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
    ours = await dist.DistributedDataParallel(made(Branches, pg.rank), pg, **options)
    mine = inputs(pg.rank, 0, 2, 4)
    ours(mine, "12").sum().backward()
    await ours.sync()
    ours.module.two.weight.grad.fill_(1.0 + pg.rank)
    ours(mine, "1").sum().backward()
    await ours.sync()
    assert torch.equal(ours.module.two.weight.grad, torch.full((3, 4), 1.0 + pg.rank)), as_view
    ours.zero_grad()
    with ours.no_sync():
        ours(mine, "2").sum().backward()
    ours(mine, "1").sum().backward()
    await ours.sync()
    expected = sum(inputs(rank, 0, 2, 4).sum(0) for rank in range(pg.size)) / pg.size
    for branch in (ours.module.one, ours.module.two):
        assert torch.allclose(branch.weight.grad, expected.expand(3, 4), atol=1e-6), as_view


async def check_fewer(pg: Any) -> None:
    """A static graph whose step brings fewer gradients than the first: those that came count."""
    ours = await dist.DistributedDataParallel(made(lambda: torch.nn.Linear(4, 3), 0), pg, static_graph=True)
    mine = inputs(pg.rank, 0, 2, 4)
    total = sum(inputs(rank, 0, 2, 4).sum(0) for rank in range(pg.size)) / pg.size
    for losses in (2, 1, 2):
        ours.zero_grad()
        outputs = [ours(mine).sum() for _ in range(losses)]
        for output in outputs:
            output.backward()
        await ours.sync()
        assert torch.allclose(ours.module.weight.grad, losses * total.expand(3, 4), atol=1e-5), losses


async def check_join(pg: Any, by_all: bool) -> None:
    """Uneven inputs: more steps on higher ranks; then all have the module of the longest."""
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


async def check_join_with_buffers(pg: Any, hooked: bool) -> None:
    """Uneven inputs: the buffers are those of a rank that has data; a hook averages over all ranks."""
    ours = await dist.DistributedDataParallel(
        made(plain, 0), pg, divide_by_initial_world_size=False, bucket_cap_mb=0.0001
    )
    if hooked:
        ours.register_comm_hook(None, mean_of(pg))
    for step in range(1 + pg.rank):
        ours.zero_grad()
        ours(inputs(pg.rank, step, 2, 3, 6, 6)).square().sum().backward()
        local = [parameter.grad.clone() for parameter in ours.parameters()]
        await ours.sync()
        if pg.rank == pg.size - 1 and step == pg.rank:  # the only one that still has data
            for mine, parameter in zip(local, ours.parameters(), strict=True):
                share = mine / pg.size if hooked else mine
                assert torch.allclose(parameter.grad, share, rtol=1e-4, atol=1e-5), hooked
            kept = [buffer.clone() for buffer in ours.buffers()]
    await ours.join()
    if pg.rank == pg.size - 1:
        for mine, buffer in zip(kept, ours.buffers(), strict=True):
            assert torch.equal(mine, buffer), hooked
    for buffer in ours.buffers():
        rows = await pg.all_gather(buffer)
        assert all(torch.equal(row, buffer) for row in rows), hooked
    assert [int(b) for name, b in ours.named_buffers() if name.endswith("tracked")] == [pg.size]


def mean_of(pg: Any) -> Any:
    """A hook that averages as the wrapper does."""

    async def hook(_: None, bucket: Any) -> torch.Tensor:
        whole: torch.Tensor = await pg.all_reduce(bucket.buffer() / pg.size)
        return whole

    return hook


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
            await check_steps(pg, Reentrant, (2, 4), f"reentrant {as_view}", static_graph=True, **view)
            await check_no_sync(pg, as_view)
            await check_unused(pg, as_view)
            await check_kept(pg, as_view)
        await check_beside(pg)
        await check_fewer(pg)
        await check_join(pg, True)
        await check_join(pg, False)
        await check_join_with_buffers(pg, False)
        await check_join_with_buffers(pg, True)
        await check_hook(pg)
        sys.stdout.write("all the same\n")
    c10d.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
