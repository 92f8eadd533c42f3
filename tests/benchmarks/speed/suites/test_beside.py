"""Many in flight in several groups: all are done, the groups are closed, and the ticker has ticked."""

from __future__ import annotations

import aiodist as dist
from aiodist.testing import run_cluster
from benchmarks.speed.suites.beside import load


async def test_all_groups_work_at_once() -> None:
    async def main(pg: dist.ProcessGroup) -> tuple[list[float], float]:
        return await load(pg, 3, 5, 0.01)

    for late, one in await run_cluster(2, main):
        assert late
        assert one > 0
