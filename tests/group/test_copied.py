"""Receives of messages that a thread copies: every order of the copy, a cancel, the next receive, a close."""

from __future__ import annotations

import asyncio
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.group.held_copies import HeldCopies, held_copies
from tests.levels import few

ROWS = 300
"""Rows of 32 numbers of a message: 77 KB, in five pieces."""


def orders(*steps: str) -> list[tuple[str, ...]]:
    """The orders of steps in which a receive is posted after another's cancel, if that is a step."""
    found = dict.fromkeys(permutations(steps))
    return [order for order in found if "cancel" not in order or order.index("cancel") < order.index("post")]


COPY = ["copy"] * 5
"""Its steps: to the first gate, the second, the end, and to the loop's hearing of it; one to spare."""


class Awaiting:
    """An await that a test drives: it is cancelled at once, in any moment."""

    def __init__(self, work: dist.Work[Any], place: Any) -> None:
        async def awaits() -> Any:
            return await work

        self._place = place
        self._steps = awaits()
        self._steps.send(None)

    def cancel(self) -> None:
        """Cancel it, and note what the tensor holds then."""
        with pytest.raises(asyncio.CancelledError):
            self._steps.throw(asyncio.CancelledError())
        self._then = self._place.copy()

    def check(self) -> None:
        """The tensor was not written since, and the program may write there."""
        assert np.array_equal(self._place, self._then)


def message(number: int, rows: int = ROWS) -> Any:
    return np.arange(rows * 32.0).reshape(rows, 32) + 10_000.0 * (number + 1)


def place(strided: bool, rows: int = ROWS) -> Any:
    return np.zeros((32, rows)).T if strided else np.zeros((rows, 32))


async def receives(pg: ProcessGroup, held: HeldCopies, order: tuple[str, ...], strided: bool) -> None:
    """Rank 0's part: messages 0 and 1, of different sizes, from rank 1."""
    if not strided:  # the message comes into memory of its own
        gone = place(False)
        awaiting = Awaiting(pg.recv(gone, 1), gone)
        awaiting.cancel()
    mine = place(strided)
    first = Awaiting(pg.recv(mine, 1), mine)
    await held.begun()
    theirs = place(strided)
    second: asyncio.Future[int] | None = None
    closing: asyncio.Task[None] | None = None
    for step in order:
        match step:
            case "copy":
                held.step()
            case "cancel":
                first.cancel()
                mine[:] = -1.0  # it is the program's again
                first._then = mine.copy()
            case "post" if closing is None:
                second = asyncio.ensure_future(pg.recv(theirs, 1))
            case "turn":
                await asyncio.sleep(0)
            case "close":
                closing = asyncio.create_task(pg.aclose())
                await asyncio.sleep(0)
    await held.finish_all(second)
    if second is not None:
        assert await second == 1
        assert np.array_equal(theirs, message(0)), "another message"
    first.check()
    if closing is None:
        last = place(strided, 7)
        assert await pg.recv(last, 1) == 1
        assert np.array_equal(last, message(1, 7))
        assert not held.all or all(copy.over for copy in held.all)
    else:
        await closing
    first.check()


@pytest.mark.parametrize(
    ("turns", "closes", "strided"),
    few(product([False, True], repeat=3), [(False, False, False), (False, True, True)]),
)
def test_every_order_of_copy_cancel_receive_and_close(strided: bool, closes: bool, turns: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        for order in orders(*COPY[: 4 if turns else 5], "cancel", "post", *(["close"] if closes else [])):
            group = await pg.new_group()
            assert group is not None
            if pg.rank == 0:
                with held_copies() as held:
                    steps = [step for each in order for step in ([each, "turn"] if turns else [each])]
                    await receives(group, held, tuple(steps), strided)
            else:
                await group.send(message(0), 0)
                if not closes:
                    await group.send(message(1, 7), 0)
            await pg.barrier()
            await group.aclose()

    run_virtual(run_cluster(2, main))
