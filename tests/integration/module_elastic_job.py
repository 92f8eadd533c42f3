"""A job that trains a module elastically: rank 1 is killed in a backward pass, and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import torch

import aiodist as dist

STEPS, BATCH, KILLED_AT = 40, 12, 10


def model() -> torch.nn.Module:
    """A module whose values only rank 0 has made well."""
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))


def batch(step: int) -> torch.Tensor:
    """The data of a step, for all ranks together."""
    return torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(step))


def optimizer_of(module: torch.nn.Module) -> tuple[torch.optim.Optimizer, list[torch.Tensor]]:
    """An optimizer with its state, which exists from the start."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for parameter in module.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer, [values["momentum_buffer"] for values in optimizer.state.values()]


def alone() -> list[torch.Tensor]:
    """The parameters that one process gets."""
    torch.manual_seed(3)
    module = model()
    module[1].eval()
    optimizer, _ = optimizer_of(module)
    for step in range(STEPS):
        optimizer.zero_grad()
        module(batch(step)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()]


async def main() -> None:
    """Train, and compare with one process."""
    pg = await dist.join()
    torch.manual_seed(3 if pg.epoch == 0 and pg.rank == 0 else 99)
    module = model()
    module[1].eval()  # so that the parts of a batch give what the batch gives
    optimizer, momenta = optimizer_of(module)
    done = torch.zeros((), dtype=torch.int64)
    ddp = await dist.DistributedDataParallel(module, pg, elastic=True, state=[*momenta, done])
    changes = 0
    while done < STEPS:
        step = int(done)
        mine = batch(step).chunk(ddp.pg.size)[ddp.pg.rank]
        optimizer.zero_grad()
        loss = ddp(mine).square().mean()
        if step == KILLED_AT and ddp.pg.rank == 1 and not Path(sys.argv[1]).exists():
            Path(sys.argv[1]).touch()
            ddp.module[0].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        loss.backward()
        if await ddp.sync():
            optimizer.step()
            done += 1
            continue
        changes += 1
        while ddp.pg.size < 3 and not await ddp.pg.pending_joins():
            pass  # until the launcher has started it again
    for mine, expected in zip(ddp.module.parameters(), alone(), strict=True):
        assert torch.allclose(mine, expected, rtol=1e-4, atol=1e-5), (mine - expected).abs().max()
    print(f"trained by {ddp.pg.size}, {changes} changes", flush=True)
    await ddp.pg.aclose()


if __name__ == "__main__":
    asyncio.run(main())
