"""A monitored barrier: it names who is late, leaves the group whole, and takes no late word for a new one."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from aiodist.group import ProcessGroup
from aiodist.integrations.torch.composed import monitored_barrier
from aiodist.testing import run_cluster


async def test_who_is_late_is_named_and_its_late_word_counts_for_nothing() -> None:
    async def member(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            with pytest.raises(RuntimeError, match="Ranks 1, 2 failed to pass monitoredBarrier in 50 ms"):
                await monitored_barrier(pg, 1, 0.05, True)
            await pg.barrier()
            await pg.barrier()  # both have come late to the first by now
            with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier in 50 ms"):
                await monitored_barrier(pg, 2, 0.05, False)
            await pg.barrier()
        else:
            await pg.barrier()
            with pytest.raises(RuntimeError, match=f"Rank {pg.rank} successfully reached monitoredBarrier"):
                await monitored_barrier(pg, 1, 0.05, True)
            await pg.barrier()
            await pg.barrier()
        await monitored_barrier(pg, 3, 60, False)
        total = np.array([pg.rank + 1.0])
        await pg.all_reduce(total)
        assert total[0] == 6

    await run_cluster(3, member)
