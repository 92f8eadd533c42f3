"""Simulating a job: a script's own communication over a network that is described, in virtual time.

`aiodist sim script.py --ranks 4096 --network …`. Pure: `network`, `constants`, `rounds`, `cost`,
`collectives`. In virtual time: `engine` (loops, threads), `board` (where operations meet), `backend`,
`world`, `program` (what a rank sees). `ledger` writes down, `report` shows.
`calibration` measures the constants.
"""

from __future__ import annotations

import time

__all__ = ["compute"]


def compute(seconds: float) -> None:
    """Compute for so long: a simulated rank is busy, and its virtual time goes on. Elsewhere it sleeps, as
    `time.sleep`.

    Args:
        seconds: of computing; a straggler's take longer.
    """
    from aiodist.sim.program import here

    place = here()
    if place is None:
        time.sleep(seconds)
    else:
        place.compute(seconds)
