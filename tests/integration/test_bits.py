"""Every rank gets the same bits, whatever libraries each has loaded."""

from __future__ import annotations

from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

from aiodist.base.types import ReduceOp
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.levels import COSTLY, MORE

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="about torch")


async def average(pg: ProcessGroup) -> None:
    """NaNs of all kinds in halves, which torch narrows otherwise than NumPy does, on half of the ranks."""
    if pg.rank >= pg.size // 2:
        import torch

        assert torch is not None
    for dtype in (ml_dtypes.bfloat16, np.float16):
        for count in (40_000, 183_867):
            bits = (np.arange(count) * 40_503 + pg.rank * 977).astype(np.uint16)
            tensor = bits.view(dtype)
            await pg.all_reduce(tensor, op=ReduceOp.AVG)
            rows = await pg.all_gather(tensor.view(np.uint16))
            assert np.isnan(tensor.astype(np.float32)).sum() > 100
            for rank, row in enumerate(rows):
                assert not np.flatnonzero(row != rows[0]).size, f"rank {rank}"


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="tcp")
async def test_averages_over_tcp(pg: ProcessGroup) -> None:
    await average(pg)


@pytest.mark.slow(MORE)
@spmd(world_size=4, hosts=2)
async def test_averages_between_hosts(pg: ProcessGroup) -> None:
    await average(pg)
