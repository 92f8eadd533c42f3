"""Order between the caller's streams and those of communication."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.gpu.tensors import CYCLES, library, occupy

pytestmark = pytest.mark.gpu

BACKEND = "cpu:host,cuda:nccl"
COUNT = 100_000


@spmd(world_size=1, backend=BACKEND)
async def test_operation_begins_after_what_the_callers_stream_was_given(pg: ProcessGroup) -> None:
    import cupy

    lib = library("cupy", pg)
    ready, tensor, out = (lib.put(np.arange(COUNT) * sign) for sign in (1, 0, -1))
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        occupy(cupy)
        cupy.copyto(tensor, ready)
        work = pg.all_reduce(tensor, out=out, async_op=True)
    await work
    assert np.array_equal(lib.get(out), np.arange(COUNT))


@pytest.mark.parametrize("given", ["stream", "pointer", "current"])
@spmd(world_size=1, backend=BACKEND)
async def test_stream_that_is_told_to_waits_for_the_result(pg: ProcessGroup, given: str) -> None:
    import cupy

    lib = library("cupy", pg)
    tensor, out, read = (lib.put(np.arange(COUNT) * sign) for sign in (1, 0, -1))
    cupy.cuda.Device().synchronize()
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with first:
        occupy(cupy)
        work = pg.all_reduce(tensor, out=out, async_op=True)
    with second:
        work.synchronize({"stream": second, "pointer": second.ptr, "current": None}[given])
        cupy.copyto(read, out)
    second.synchronize()
    assert np.array_equal(lib.get(read), np.arange(COUNT))
    await work
    work.synchronize()  # nothing is to be waited for any more


@pytest.mark.usefixtures("torch_with_cuda")
@spmd(world_size=1, backend=BACKEND)
async def test_torch_streams_are_torchs(pg: ProcessGroup) -> None:
    import torch

    lib = library("torch", pg)
    ready, tensor, out, read = (lib.put(np.arange(COUNT) * sign) for sign in (1, 0, -1, -2))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        tensor.copy_(ready)
        work = pg.all_reduce(tensor, out=out, async_op=True)
        work.synchronize()
        read.copy_(out)
    stream.synchronize()
    assert np.array_equal(lib.get(read), np.arange(COUNT))
    assert await work is out


@spmd(world_size=1, backend=BACKEND)
async def test_operation_in_a_batch_begins_after_the_stream_of_its_call(pg: ProcessGroup) -> None:
    """Not after the one that is current when the block ends."""
    import cupy

    lib = library("cupy", pg)
    ready, tensor, out = (lib.put(np.arange(COUNT) * sign) for sign in (1, 0, -1))
    cupy.cuda.Device().synchronize()
    async with pg.coalesce():
        with cupy.cuda.Stream(non_blocking=True):
            occupy(cupy)
            cupy.copyto(tensor, ready)
            work = pg.all_reduce(tensor, out=out, async_op=True)
    await work
    assert np.array_equal(lib.get(out), np.arange(COUNT))


@spmd(world_size=1, backend=BACKEND)
async def test_tensor_may_be_freed_after_synchronize(pg: ProcessGroup) -> None:
    """Its memory is given to what comes behind on the stream: not before the operation is through with it."""
    import cupy

    lib = library("cupy", pg)
    ready = lib.put(np.arange(COUNT))
    out, read = lib.put(np.zeros((1, COUNT), np.int64)), lib.put(np.zeros((1, COUNT), np.int64))
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        tensor = cupy.empty_like(ready)
        occupy(cupy)
        cupy.copyto(tensor, ready)
        work = pg.all_gather(tensor, out, async_op=True)
        work.synchronize()
        del tensor, work
        for _ in range(50):
            cupy.zeros(COUNT, np.int64)  # takes what was given back
        cupy.copyto(read, out)
    stream.synchronize()
    assert np.array_equal(lib.get(read), [np.arange(COUNT)])
    await pg.drain()


@spmd(world_size=1, backend=BACKEND)
async def test_memory_that_nobody_holds_is_kept_until_the_operation_is_over(pg: ProcessGroup) -> None:
    import cupy

    lib = library("cupy", pg)
    ready = lib.put(np.arange(COUNT))
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        tensor = cupy.empty_like(ready)
        occupy(cupy)
        cupy.copyto(tensor, ready)
        work = pg.all_gather(tensor, async_op=True)
        del tensor
        for _ in range(50):
            cupy.zeros(COUNT, np.int64)  # takes what was given back
    assert np.array_equal(lib.get(await work), [np.arange(COUNT)])
