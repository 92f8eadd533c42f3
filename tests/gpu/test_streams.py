"""Order between the caller's streams and those of communication."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.gpu.tensors import library

pytestmark = pytest.mark.gpu

BACKEND = "cpu:host,cuda:nccl"
SIDE = 3000  # a product of matrices of this side takes longer than any launch


@spmd(world_size=1, backend=BACKEND)
async def test_operation_begins_after_what_the_callers_stream_was_given(pg: ProcessGroup) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        slow = cupy.ones((SIDE, SIDE), np.float32)
        x = cupy.zeros(SIDE, np.float32)
        for _ in range(20):
            slow = slow @ slow / SIDE
        x += slow[0]
        out = cupy.zeros(SIDE, np.float32)
        work = pg.all_reduce(x, out=out, async_op=True)
    await work
    assert np.array_equal(cupy.asnumpy(out), np.ones(SIDE, np.float32))


@pytest.mark.parametrize("given", ["stream", "pointer", "current"])
@spmd(world_size=1, backend=BACKEND)
async def test_stream_that_is_told_to_waits_for_the_result(pg: ProcessGroup, given: str) -> None:
    import cupy

    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with first:
        slow = cupy.ones((SIDE, SIDE), np.float32)
        for _ in range(20):
            slow = slow @ slow / SIDE
        out = cupy.zeros((SIDE, SIDE), np.float32)
        work = pg.all_reduce(slow, out=out, async_op=True)
    with second:
        work.synchronize({"stream": second, "pointer": second.ptr, "current": None}[given])
        read = out + 1
    second.synchronize()
    assert np.array_equal(cupy.asnumpy(read), np.full((SIDE, SIDE), 2, np.float32))
    await work
    work.synchronize()  # nothing is to be waited for any more


@pytest.mark.usefixtures("torch_with_cuda")
@spmd(world_size=1, backend=BACKEND)
async def test_torch_streams_are_torchs(pg: ProcessGroup) -> None:
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        slow = torch.ones((SIDE, SIDE), device="cuda")
        for _ in range(20):
            slow = slow @ slow / SIDE
        out = torch.zeros_like(slow)
        work = pg.all_reduce(slow, out=out, async_op=True)
        work.synchronize()
        read = out + 1
    stream.synchronize()
    assert torch.equal(read.cpu(), torch.full((SIDE, SIDE), 2.0))
    assert await work is out


@spmd(world_size=1, backend=BACKEND)
async def test_memory_that_nobody_holds_is_kept_until_the_operation_is_over(pg: ProcessGroup) -> None:
    import cupy

    lib = library("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        slow = cupy.ones((SIDE, SIDE), np.float32)
        for _ in range(20):
            slow = slow @ slow / SIDE
        work = pg.all_gather(slow[0] * 3, async_op=True)  # a temporary
        del slow
    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(50):
            cupy.full((SIDE, SIDE), 7, np.float32)  # takes what was given back
    assert np.array_equal(lib.get(await work), np.full((1, SIDE), 3, np.float32))
