"""The work of a member of a job that outlives deaths: steps with exact sums, a new epoch after each fault.

Each process adds a number of its own to every element, so a sum says exactly who took part in it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

import aiodist as dist
from benchmarks.deaths.ranks import describe
from tests.support.faults import Stage

ENDS = (dist.QuorumLost, dist.Evicted)
REBUILDS = 40  # more in a row, without a step between them, are not "converging"


async def live(
    stage: Stage,
    *,
    patience: float = 5.0,
    min_size: int = 1,
    newcomer: bool = False,
    steps: int = 1 << 62,
    nbytes: int = 1 << 13,
    look: int = 0,
    crash_rebuilding: int = 0,
    crash_at: int = 0,
) -> dict[str, Any]:
    """Step until told to 'stop', or until so many steps of one later epoch are done; rebuild where it breaks.

    Args:
        stage: says 'epoch' with `number` and `members` for each epoch in which a step was done, 'breaks' for
            each fault, 'running' after the first step; hears 'stop'.
        patience: seconds for `rebuild`, and for `join`.
        min_size: of an epoch.
        newcomer: come by `dist.join`.
        steps: how many, of an epoch after the first, are enough.
        nbytes: of a step's tensor.
        look: after every so many steps, look whether newcomers wait, and admit them; 0: never.
        crash_rebuilding: crash at this call of aiodist after the first fault was noticed; 0: do not.
        crash_at: crash at this call of aiodist, counted from the beginning.

    Returns:
        → `right`, `wrong` steps; `epoch` and `members` of the last epoch; `ended`: an error that ended it, as
        `describe` has it, or None; `told`: whether it was told to stop.
    """
    seen: dict[str, Any] = {"right": 0, "wrong": 0, "epoch": -1, "members": [], "ended": None, "told": False}
    orderly = False
    if crash_at:
        stage.crash(count=crash_at)
    pg = await (dist.join(timeout=4 * patience) if newcomer else stage.join())
    try:
        rebuilds = 0
        while True:
            before = seen["right"]
            try:
                async for number, flags in _steps(stage, pg, seen, nbytes):
                    if flags or (pg.epoch and number >= steps):
                        await pg.barrier()  # so that nobody takes the end of another for a fault
                        orderly = True
                        return seen
                    if look and number % look == 0 and await pg.pending_joins():
                        break
            except ENDS:
                raise
            except dist.GroupBroken as error:
                stage.say("breaks", **_named(describe(error)))
            rebuilds = 0 if seen["right"] > before else rebuilds + 1
            if rebuilds > REBUILDS:
                raise AssertionError(f"{rebuilds} epochs in a row without one good step")
            if crash_rebuilding:
                stage.crash(count=crash_rebuilding)
            pg = await pg.rebuild(min_size=min_size, admit=True, timeout=patience)
    except ENDS as error:
        seen["ended"] = describe(error)
        return seen
    finally:
        if not orderly:
            pg.abort("its life is over")
        await pg.aclose()


async def _steps(stage: Stage, pg: Any, seen: dict[str, Any], nbytes: int) -> AsyncIterator[tuple[int, int]]:
    """Steps of one epoch → how many there were, and how many members were told to stop."""
    members = await pg.all_gather_object(stage.rank)
    base = np.arange(max(1, nbytes // 8), dtype=np.int64) % 1009
    tensor = np.zeros(len(base) + 1, np.int64)
    number = 0
    while True:
        np.add(base, 31 * stage.rank + number, out=tensor[:-1])
        seen["told"] = seen["told"] or "stop" in stage.told()
        tensor[-1] = seen["told"]
        await pg.all_reduce(tensor)
        expected = len(members) * (base + number) + 31 * sum(members)
        right = bool(np.array_equal(tensor[:-1], expected))
        seen["right" if right else "wrong"] += 1
        number += 1
        if number == 1:
            seen |= {"epoch": pg.epoch, "members": members}
            stage.say("epoch", number=pg.epoch, members=members, **held())
            stage.say("running")
        yield number, int(tensor[-1])


def _named(error: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in error.items() if name != "at"}


def held() -> dict[str, Any]:
    """The resources that this process holds: descriptors, shared mappings, bytes in memory, threads."""
    maps = Path("/proc/self/maps").read_text()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "shm": maps.count("/memfd:"),
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": threading.active_count(),
        "seconds": time.monotonic(),
    }
