"""The end of a membership: what of it still goes on in the background, and who stops waiting for that."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aiodist.group.epochs.job import Job
from aiodist.group.epochs.world import Settings
from aiodist.rendezvous import HashStore


class Epochs:
    """Old epochs of a job that take their time to end.

    Args:
        patience: cancellations that the closing of one does not heed.
    """

    def __init__(self, patience: int = 0) -> None:
        self.happened: list[str] = []
        self._patience = patience

        async def leave() -> None:
            self.happened.append("left")

        settings = Settings("world", "job", "auto", {}, 30.0)
        self.job = Job(b"uid", "me", settings, HashStore(), cast("Any", None), leave)

    async def closing(self, name: str) -> None:
        for _ in range(self._patience + 1):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.happened.append(name)
        raise asyncio.CancelledError

    async def ending(self) -> asyncio.Task[None]:
        """The end of the job, which waits for the old epochs."""
        task = asyncio.create_task(self.job.end())
        await some_turns()
        assert self.happened == []
        return task


async def some_turns() -> None:
    """As many as a cancellation takes to be handed on and heard."""
    for _ in range(8):
        await asyncio.sleep(0)


async def test_nothing_of_a_job_outlives_an_end_that_is_cancelled() -> None:
    epochs = Epochs()
    epochs.job.in_background(epochs.closing("first"))
    epochs.job.in_background(epochs.closing("second"))
    end = await epochs.ending()
    end.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await end
    assert sorted(epochs.happened[:2]) == ["first", "second"]
    assert epochs.happened[2:] == ["left"]
    assert not epochs.job.background


async def test_each_cancellation_of_the_end_is_handed_on() -> None:
    epochs = Epochs(patience=2)
    epochs.job.in_background(epochs.closing("closing"))
    end = await epochs.ending()
    heard = []
    for _ in range(3):
        end.cancel()
        await some_turns()
        heard.append(list(epochs.happened))
    for task in tuple(epochs.job.background):  # whatever is left would hold up the loop's end
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await end
    assert heard == [["closing"], ["closing"] * 2, ["closing"] * 3 + ["left"]]


async def test_the_closing_of_an_epoch_is_begun_even_if_it_is_cancelled_at_once() -> None:
    epochs = Epochs()
    epochs.job.in_background(epochs.closing("first"))
    end = await epochs.ending()
    end.cancel()
    epochs.job.in_background(epochs.closing("last"))
    with pytest.raises(asyncio.CancelledError):
        await end
    assert sorted(epochs.happened[:2]) == ["first", "last"]
    assert not epochs.job.background
