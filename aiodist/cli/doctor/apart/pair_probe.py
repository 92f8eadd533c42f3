"""One of two ranks that meet on this host, and add and pass on numbers with the host backend."""

from __future__ import annotations

from pathlib import Path


def probe(rank: str, where: str, limit: str) -> dict[str, object]:
    """Add and pass on numbers → 'right': the results are; 'shared': it was done in shared memory.

    Args:
        rank: '0' or '1'.
        where: they meet, a URL that nobody else knows.
        limit: seconds.
    """
    import numpy as np

    from aiodist.group.runtime.init import init_process_group
    from aiodist.group.runtime.running import run

    async def pair() -> dict[str, object]:
        group = await init_process_group("host", where, timeout=float(limit), world_size=2, rank=int(rank))
        async with group as pg:
            mine = np.arange(1000, dtype=np.float64) + 10000 * pg.rank
            theirs = np.zeros_like(mine)
            sent = pg.send(mine, 1 - pg.rank)
            await pg.recv(theirs, 1 - pg.rank)
            await sent
            total = mine.copy()
            await pg.all_reduce(total)
            expected = np.arange(1000, dtype=np.float64) + 10000 * (1 - pg.rank)
            right = bool((theirs == expected).all() and (total == mine + theirs).all())
            return {"right": right, "shared": _mapped() > 1}

    return run(pair())


def _mapped() -> int:
    """The number of processes whose shared segment is mapped here: this one's, and the peer's."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return 0
    return len({line.split()[4] for line in lines if "/memfd:aiodist" in line})
