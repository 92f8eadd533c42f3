"""torch's DDP with quantised gradients: the job of `test_torch_hook.py`.

`aiodist run --nproc-per-node N torch_hook_job.py BACKEND CHECK`; each rank prints "same" at the end.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as c10d
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aiodist as dist
from aiodist.integrations.torch.hooks import QuantizedState, quantized_hook

STEPS = 5
Bits = list[bytes]


def network() -> nn.Sequential:
    """Of float32; the same on all ranks."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 5))


def batch(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(12, 20, generator=generator) + rank


def of_the_rank(module: nn.Module, given: torch.Tensor) -> dict[int, torch.Tensor]:
    """This rank's own gradients, by the parameter's number."""
    alone = copy.deepcopy(module)
    alone.zero_grad()
    alone(given).square().sum().backward()
    return {number: parameter.grad for number, parameter in enumerate(alone.parameters())}


def flat(layout: list[int], gradients: dict[int, torch.Tensor]) -> Any:
    return torch.cat([gradients[number].reshape(-1) for number in layout]).numpy()


def trained(codec: str, cap: float) -> tuple[list[list[list[int]]], list[Bits], list[Any]]:
    """Train by torch's DDP with the hook → buckets, averages and this rank's gradients of each step."""
    module = network()
    model = DistributedDataParallel(module, bucket_cap_mb=cap)
    state = QuantizedState(codec)
    numbers = {id(parameter): number for number, parameter in enumerate(module.parameters())}
    layouts: list[list[list[int]]] = []

    def hook(state: QuantizedState, bucket: Any) -> Any:
        if not bucket.index():
            layouts.append([])
        layouts[-1].append([numbers[id(one)] for one in bucket.parameters()])
        return quantized_hook(state, bucket)

    hook.__annotations__.clear()  # torch compares them with its own classes
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    averages, own = [], []
    for step in range(STEPS):
        given = batch(c10d.get_rank(), step)
        own.append(of_the_rank(module, given))
        optimizer.zero_grad()
        model(given).square().sum().backward()
        averages.append([parameter.grad.numpy().tobytes() for parameter in module.parameters()])
        optimizer.step()
    return layouts, averages, own


def same_as_gradient_sync(codec: str, cap: float, least: int) -> None:
    """Compare with GradientSync over the same buckets: the same bits, in all steps, feedback included."""
    layouts, averages, own = trained(codec, cap)
    assert len(layouts[-1]) >= least, layouts
    pg = c10d.distributed_c10d._get_default_group().ours
    sizes = [parameter.numel() for parameter in network().parameters()]
    shapes = [tuple(parameter.shape) for parameter in network().parameters()]
    sync, before = None, None
    for layout, gradients, average in zip(layouts, own, averages, strict=True):
        if layout != before:  # torch has built its buckets anew; feedback begins anew with them
            arrays = [np.zeros(sum(sizes[number] for number in part), np.float32) for part in layout]
            sync = dist.portal.GradientSync(pg, arrays[::-1], 1e-9, codec=codec)  # each array a bucket
            before = layout
        assert sync is not None
        for index, part in enumerate(layout):
            sync.ready(len(layout) - 1 - index, flat(part, gradients))
        for part, whole in zip(layout, sync.finish()[::-1], strict=True):
            at = 0
            for number in part:
                wanted = np.asarray(whole)[at : at + sizes[number]]
                assert average[number] == wanted.reshape(shapes[number]).tobytes(), number
                at += sizes[number]


def int8() -> None:
    """One bucket."""
    same_as_gradient_sync("int8", 25, 1)


def int4_in_buckets() -> None:
    """Several buckets, which torch builds anew after the first step."""
    same_as_gradient_sync("int4/32", 0.004, 2)


def the_mean_over_steps_is_exact() -> None:
    """With the same gradients again and again, what one step leaves out comes later: 4 bits are enough."""
    module = network()
    model = DistributedDataParallel(module)
    model.register_comm_hook(QuantizedState("int4"), quantized_hook)
    exact = DistributedDataParallel(copy.deepcopy(module))
    total = [torch.zeros_like(parameter) for parameter in module.parameters()]
    times, worst = 40, 0.0
    given = batch(c10d.get_rank(), 0)
    exact(given).square().sum().backward()
    for _ in range(times):
        model.zero_grad()
        model(given).square().sum().backward()
        for one, parameter, right in zip(total, module.parameters(), exact.parameters(), strict=True):
            one += parameter.grad
            worst = max(worst, float((parameter.grad - right.grad).abs().max()))
    apart = max(
        float((one / times - parameter.grad).abs().max())
        for one, parameter in zip(total, exact.parameters(), strict=True)
    )
    assert 0 < apart < worst / 5, (apart, worst)


def not_finite() -> None:
    """A value that is not finite is NaN on all ranks, and training goes on; or all raise."""
    for non_finite in ("keep", "raise"):
        module = network()
        model = DistributedDataParallel(module)
        model.register_comm_hook(QuantizedState("int8", non_finite=non_finite), quantized_hook)
        given = batch(c10d.get_rank(), 1)
        if c10d.get_rank() == c10d.get_world_size() - 1:
            given[0, 0] = torch.inf
        if non_finite == "raise":
            with pytest.raises(RuntimeError, match=f"rank {c10d.get_world_size() - 1}"):
                model(given).square().sum().backward()
            continue
        model(given).square().sum().backward()
        assert any(parameter.grad.isnan().any() for parameter in module.parameters())
        model.zero_grad()
        model(batch(c10d.get_rank(), 2)).square().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def left_out(state: QuantizedState) -> list[bytes]:
    return [feedback.error.tobytes() for _, feedback in state._feedback.values()]  # type: ignore[union-attr]


def a_step_that_raises_does_not_count() -> None:
    """What rounding left out stays as it was, in all buckets; training goes on."""
    module = network()
    model = DistributedDataParallel(module, bucket_cap_mb=0.004)
    state = QuantizedState("int8", non_finite="raise")
    model.register_comm_hook(state, quantized_hook)
    given = batch(c10d.get_rank(), 1)
    for _ in range(3):
        model(given).square().sum().backward()
    before = left_out(state)
    assert len(before) == 2 and len(set(before)) == 2
    hook = module[0].weight.register_hook(lambda gradient: gradient * float("inf"))  # only of the last bucket
    with pytest.raises(RuntimeError, match="rank"):
        model(given).square().sum().backward()
    hook.remove()
    assert left_out(state) != before  # the first bucket was averaged well
    state.end_step()
    assert left_out(state) == before
    model.zero_grad()
    model(given).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def diloco() -> None:
    """Rare communication in a program of torch's, over its default group."""
    module = network()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += c10d.get_rank()  # all begin with rank 0's
    local = dist.portal.LocalSGD(c10d.group.WORLD, module.parameters(), sync_every=3, codec="int8")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    first = [parameter.detach().clone() for parameter in network().parameters()]
    for parameter, wanted in zip(module.parameters(), first, strict=True):
        assert torch.equal(parameter, wanted)
    for step in range(6):
        optimizer.zero_grad()
        module(batch(c10d.get_rank(), step)).square().mean().backward()
        optimizer.step()
        alone = [parameter.detach().clone() for parameter in module.parameters()]
        local.step()
        for parameter, own in zip(module.parameters(), alone, strict=True):
            mean = own.clone()
            c10d.all_reduce(mean, c10d.ReduceOp.AVG)  # torch's own calls between them
            if (step + 1) % 3 == 0:
                assert not torch.equal(parameter, own)
                assert torch.allclose(parameter, mean, atol=2e-3)
            else:
                assert torch.equal(parameter, own)
    everywhere = [torch.empty_like(parameter) for _ in range(c10d.get_world_size())]
    c10d.all_gather(everywhere, parameter.detach())
    assert all(torch.equal(one, everywhere[0]) for one in everywhere)


def refused() -> None:
    """What has no meaning."""
    with pytest.raises(dist.UsageError, match="codec must be"):
        QuantizedState("fp8")
    with pytest.raises(dist.UsageError, match="sends no quantised values"):
        QuantizedState("int8", c10d.new_group(backend="gloo"))


if __name__ == "__main__":
    backend, check = sys.argv[1:]
    checks: dict[str, Callable[[], None]] = {
        one.__name__: one
        for one in (
            int8,
            int4_in_buckets,
            the_mean_over_steps_is_exact,
            not_finite,
            a_step_that_raises_does_not_count,
            diloco,
            refused,
        )
    }
    c10d.init_process_group(backend)
    checks[check]()
    c10d.barrier()
    c10d.destroy_process_group()
    print("same", flush=True)
