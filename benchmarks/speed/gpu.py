"""Device tensors: aiodist's NCCL beside torch.distributed's, in turns, in the same processes.

    aiodist run --nproc-per-node 2 -m benchmarks.speed.gpu

For several ranks on one GPU, which NCCL 2.30 and later can do, set NCCL_MULTI_RANK_GPU_ENABLE=1.

Measured for all_reduce of float32: how long the call holds its caller, when the host may read the result,
and how fast many are, one after the other. Then how late the loop is while 1 GiB is reduced, and how long
after an abort the device is free. torch is left out where it has no CUDA, or its NCCL refuses these ranks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.cli.bench.lateness import Ticker

SIZES = [8, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30]
TURNS = 5
PATIENCE = timedelta(seconds=60)  # torch's with a rank whose NCCL refuses

Call = Callable[[Any], Any]
"""A starter of an all_reduce → what is waited for."""


class Peer:
    """One way to reduce: aiodist's or torch's."""

    def __init__(
        self,
        name: str,
        call: Call,
        finish: Callable[[Any], Awaitable[None]],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.call, self.finish, self.close = name, call, finish, close


async def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="bytes")
    parser.add_argument("--no-torch", action="store_true", help="leave torch out")
    options = parser.parse_args()
    with contextlib.suppress(dist.GroupBroken):  # by the abort, at the end
        await _measure_all(options)


async def _measure_all(options: argparse.Namespace) -> None:
    async with await dist.init_process_group("cpu:host,cuda:nccl") as pg:
        peers = [Peer("aiodist", lambda tensor: pg.all_reduce(tensor, async_op=True), _awaited)]
        make = _cupy_ones
        if not options.no_torch:
            torch = await _torch(pg)
            if torch is not None:
                peers.append(torch)
                make = _torch_ones
        _use(pg)
        say = print if pg.rank == 0 else _silent
        say(f"{pg.size} ranks, {len(peers)} peers: {', '.join(peer.name for peer in peers)}")
        say(f"{'bytes':>12} {'peer':>8} {'hold µs':>10} {'visible µs':>12} {'busbw GB/s':>12}")
        for size in options.sizes:
            rows: dict[str, list[tuple[float, float, float]]] = {peer.name: [] for peer in peers}
            tensor = make(size // 4)
            for turn in range(TURNS + 1):
                for peer in peers:
                    await pg.barrier()
                    row = await _measure(pg, peer, tensor)
                    if turn:  # the first connects
                        rows[peer.name].append(row)
            for name, measured in rows.items():
                hold, visible, rate = (statistics.median(column) for column in zip(*measured, strict=True))
                say(f"{size:>12} {name:>8} {hold * 1e6:>10.1f} {visible * 1e6:>12.1f} {rate / 1e9:>12.2f}")
            del tensor
        for peer in peers:
            peer.close()
        await _lateness(pg, make, say)
        await _abort(pg, make, say)


async def _measure(pg: dist.ProcessGroup, peer: Peer, tensor: Any) -> tuple[float, float, float]:
    """Seconds that the call holds, seconds to the result, bytes a second over the bus."""
    ranks = pg.size
    begin = time.perf_counter()
    work = peer.call(tensor)
    called = time.perf_counter()
    await peer.finish(work)
    visible = time.perf_counter()
    slowest = await pg.all_reduce(np.array([visible - begin]), dist.ReduceOp.MAX)  # all do as many
    count = max(3, min(100, int(0.2 / max(float(slowest[0]), 1e-6))))
    start = time.perf_counter()
    works = [peer.call(tensor) for _ in range(count)]
    for work in works:
        await peer.finish(work)
    each = (time.perf_counter() - start) / count
    factor = 2 * (ranks - 1) / ranks if ranks > 1 else 1.0
    return called - begin, visible - begin, tensor.nbytes * factor / each


async def _awaited(work: Any) -> None:
    await work


async def _torch(pg: dist.ProcessGroup) -> Peer | None:
    """torch's NCCL backend on the same ranks; None where it cannot."""
    ready = 1
    try:
        import torch
        import torch.distributed as td

        if not torch.cuda.is_available():
            ready = 0
    except ImportError:
        ready = 0
    agreed = await pg.all_reduce(np.array([ready]), dist.ReduceOp.MIN)
    if not agreed[0]:
        return None
    place = os.path.join(tempfile.gettempdir(), f"aiodist-gpu-{os.getpid()}") if pg.rank == 0 else None
    path = await pg.broadcast_object(place)
    torch.cuda.set_device(pg.device)
    try:
        td.init_process_group(
            "nccl", init_method=f"file://{path}", rank=pg.rank, world_size=pg.size, timeout=PATIENCE
        )
        td.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
    except Exception as error:
        ready = 0
        if pg.rank == 0:
            print(f"without torch: {error}")
    agreed = await pg.all_reduce(np.array([ready]), dist.ReduceOp.MIN)

    async def finish(work: Any) -> None:
        work.wait()
        torch.cuda.current_stream().synchronize()

    if not agreed[0]:
        return None
    return Peer(
        "torch", lambda tensor: td.all_reduce(tensor, async_op=True), finish, td.destroy_process_group
    )


async def _lateness(pg: dist.ProcessGroup, make: Callable[[int], Any], say: Callable[..., None]) -> None:
    """Measure the lateness of a 1 ms ticker while 1 GiB is reduced, again and again."""
    tensor = make((1 << 30) // 4)
    await pg.all_reduce(tensor)
    ticker = Ticker()
    ticker.start()
    for _ in range(20):
        await pg.all_reduce(tensor)
    late = sorted(ticker.stop())
    p99 = late[int(len(late) * 0.99)] if late else 0.0
    say(f"lateness of the loop while 1 GiB is reduced: p99 {p99 * 1e3:.3f} ms of {len(late)} ticks")


async def _abort(pg: dist.ProcessGroup, make: Callable[[int], Any], say: Callable[..., None]) -> None:
    """Rank 0 begins what nobody else does, and aborts: until its device is through with all."""
    if pg.size == 1:
        return
    group = await pg.new_group()
    assert group is not None
    tensor = make(1 << 20)
    await group.all_reduce(tensor)
    if pg.rank == 0:
        work = group.all_reduce(tensor, async_op=True)
        await asyncio.sleep(0.05)
        begin = time.perf_counter()
        group.abort("measured")
        with contextlib.suppress(dist.GroupBroken):
            await work
        await asyncio.to_thread(_device_idle, pg)
        say(f"abort to an idle device: {time.perf_counter() - begin:.3f} s")
    else:
        with contextlib.suppress(dist.GroupBroken):
            await group.barrier()
    await group.aclose()


def _use(pg: dist.ProcessGroup) -> None:
    """CuPy's arrays are made on the group's device from now on."""
    import cupy

    cupy.cuda.Device(pg.device).use()


def _device_idle(pg: dist.ProcessGroup) -> None:
    import cupy

    cupy.cuda.Device(pg.device).synchronize()


def _cupy_ones(count: int) -> Any:
    import cupy

    return cupy.ones(count, np.float32)


def _torch_ones(count: int) -> Any:
    import torch

    return torch.ones(count, device="cuda")


def _silent(*_: object) -> None:
    """Rank 0 says it."""


if __name__ == "__main__":
    dist.run(main())
