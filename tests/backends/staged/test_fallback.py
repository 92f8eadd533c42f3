"""How operations come to be staged: ranks on one GPU, which their NCCL cannot share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.choice import BackendChoice, parse
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.backends.cuda.stand_in import Tensor
from tests.backends.nccl.stand_in import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """One device, CuPy and NCCL."""
    made = World()
    for name, module in made.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    yield made
    made.close()


@pytest.mark.parametrize("backend", ["nccl", "cpu:host,cuda:nccl"])
async def test_ranks_that_share_a_gpu_are_told_in_one_line(
    world: World, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    async def main(pg: ProcessGroup) -> None:
        tensor = Tensor(np.arange(5)[::2] + pg.rank)
        await pg.all_reduce(tensor)
        assert np.array_equal(tensor.array, np.arange(5)[::2] * 3 + 3)
        if backend == "nccl":
            with pytest.raises(dist.UsageError, match="takes tensors on CUDA devices"):
                await pg.all_reduce(np.zeros(3))

    await run_cluster(3, main, backend=backend)
    lines = [record for record in caplog.records if record.name == "aiodist"]
    assert [record.levelno for record in lines] == [logging.WARNING]
    assert "through the host, not nccl: ranks 0, 1 and 2 share a GPU" in lines[0].getMessage()
    assert world.communicators == []


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("gpu", [True, False])
def test_host_was_asked_for(gpu: bool) -> None:
    choice = parse("host", gpu).check()
    assert (choice.staged, choice.device) == ((True, 0) if gpu else (False, None))
    assert choice.plain == (not gpu)


def test_nobody_asked_and_nccl_is_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.modules["cupy.cuda.nccl"].available = False  # type: ignore[attr-defined]
    choice = parse(None, gpu=True).check()
    assert (choice.staged, choice.device, choice.engines) == (True, 0, {})
    world.modules["cupy.cuda"].runtime.getDeviceCount = lambda: 0
    assert parse(None, gpu=True).check() == BackendChoice()
