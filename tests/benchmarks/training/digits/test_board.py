"""The board that ranks and the killer share: who has come, who takes part, and how far they may go."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from benchmarks.training.digits.board import FREE, Board
from tests.waiting import until_so


async def test_ranks_wait_for_the_limit_that_the_killer_sets(tmp_path: Path) -> None:
    killer = Board(tmp_path / "board", 3)
    rank = Board(tmp_path / "board")
    assert rank.slots == 3 and killer.pid(2) == 0 and not killer.member(2)
    rank.here(2)
    assert (killer.pid(2), killer.member(2)) == (os.getpid(), False)
    killer.allow(6)
    await rank.turn(2, 6)
    assert (killer.pid(2), killer.member(2), killer.step(2)) == (os.getpid(), True, 6)
    waiting = asyncio.ensure_future(rank.turn(2, 7))
    await until_so(lambda: killer.step(2) == 7)
    assert not waiting.done() and killer.allowed == 6
    killer.allow(FREE)
    await waiting
    assert killer.pid(0) == killer.step(1) == 0
    rank.here(2)
    assert not killer.member(2) and killer.step(2) == 0
