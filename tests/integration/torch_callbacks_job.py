"""A job whose callbacks of futures issue collectives. Arguments: the backend; a rank that dies in a hook."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as c10d
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

MANY = 200


def wrapped(cap: float) -> Any:
    """A module of several layers."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=cap)


def backward(ddp: Any, step: int) -> None:
    """A backward pass on data of this rank's own."""
    seed = step * c10d.get_world_size() + c10d.get_rank()
    ddp.zero_grad()
    ddp(torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))).square().sum().backward()


def check_many(rank: int, size: int) -> None:
    """Callbacks of operations small and large issue others, and the program issues more between."""
    everybody = size * (size + 1) / 2
    found: dict[int, float] = {}

    def issuing(number: int) -> Callable[[Any], torch.Tensor]:
        def callback(_: Any) -> torch.Tensor:
            mine = torch.tensor([float((number + 1) * (rank + 1))])
            c10d.all_reduce(mine)
            found[number] = mine.item()
            return mine

        return callback

    futures = []
    for number in range(MANY):
        tensor = torch.ones(1 if number % 3 else 100_000)
        work = c10d.all_reduce(tensor, async_op=True)
        futures.append(work.get_future().then(issuing(number)).then(lambda future: future.value() * 2))
        if number % 5 == 0:
            between = torch.tensor([float(number * (rank + 1))])
            c10d.all_reduce(between)
            assert between.item() == number * everybody
    results = torch.futures.wait_all(futures)
    assert found == {number: (number + 1) * everybody for number in range(MANY)}
    assert [result.item() for result in results] == [2 * (number + 1) * everybody for number in range(MANY)]


def check_power_sgd(size: int) -> None:
    """A hook that issues three times for each of several buckets."""
    ddp = wrapped(cap=0.01)
    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook)
    for step in range(12):
        backward(ddp, step)
    mine = torch.cat([parameter.grad.reshape(-1) for parameter in ddp.parameters()])
    rows = [torch.empty_like(mine) for _ in range(size)]
    c10d.all_gather(rows, mine)
    assert all(torch.equal(rows[0], row) for row in rows)


def check_crosswise(size: int) -> None:
    """A callback waits for a callback of an operation that comes later."""
    first, second = (c10d.all_reduce(torch.ones(1), async_op=True) for _ in range(2))
    later = second.get_future()

    def issuing(future: Any) -> torch.Tensor:
        mine = future.value()[0].clone()
        c10d.all_reduce(mine)
        return mine

    assert first.get_future().then(lambda _: later.then(issuing).wait()).wait().item() == size * size


def check_many_groups(rank: int, size: int) -> None:
    """Callbacks of more groups wait at the same time than a small pool has threads."""
    groups = [c10d.new_group(list(range(size))) for _ in range(70)]
    works = [c10d.all_reduce(torch.ones(1), group=group, async_op=True) for group in groups[rank == 0 :]]
    futures = [work.get_future().then(lambda future: future.value()[0].item()) for work in works]
    if rank == 0:  # the last one that comes, for which all have to wait
        work = c10d.all_reduce(torch.ones(1), group=groups[0], async_op=True)
        futures.append(work.get_future().then(lambda future: future.value()[0].item()))
    assert torch.futures.wait_all(futures) == [float(size)] * 70
    for group in groups:
        c10d.destroy_process_group(group)


def check_freed() -> None:
    """A Work whose future was asked for keeps its tensors no longer than others."""
    gc.collect()
    gc.disable()
    tensor = torch.ones(1000)
    freed = weakref.ref(tensor)
    work = c10d.all_reduce(tensor, async_op=True)
    work.get_future().then(lambda done: done.value()[0].sum()).wait()
    del tensor, work
    for _ in range(20):  # another thread may be about to let go of it
        c10d.barrier()
    assert freed() is None
    gc.enable()


def check_bare_thread() -> None:
    """A thread without a frame of Python's, as autograd has them, asks for the future."""
    work = c10d.all_reduce(torch.ones(1), async_op=True)
    _thread.start_new_thread(work.get_future, ())
    while work._future is None:
        os.sched_yield()
    assert work._shown is None  # it is given one in which an error is one for C++
    assert work._future.wait()[0].item() == c10d.get_world_size()


def die(rank: int, victim: int) -> None:
    """A rank dies; the hooks of the others say who."""
    ddp = wrapped(cap=0.01)
    ddp.register_comm_hook(None, allreduce_hook)
    backward(ddp, 0)
    c10d.barrier()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for step in range(10_000):
            backward(ddp, step)
    except RuntimeError as error:
        print("told:", " ".join(str(error).split()), flush=True)


def main() -> None:
    """Run the checks."""
    backend, *victim = sys.argv[1:]
    c10d.init_process_group(backend)
    rank, size = c10d.get_rank(), c10d.get_world_size()
    if victim:
        die(rank, int(victim[0]))
        return
    for _ in range(3):
        check_many(rank, size)
    check_power_sgd(size)
    check_crosswise(size)
    check_many_groups(rank, size)
    check_freed()
    check_bare_thread()
    print("in order", flush=True)
    c10d.destroy_process_group()


if __name__ == "__main__":
    main()
