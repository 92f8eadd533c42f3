"""Debug lines say what happened when members changed: who broke the group, who drafted, what was decided."""

from __future__ import annotations

import logging

import pytest

from aiodist.group import ProcessGroup
from tests.group.epochs.elastic import crash, run, until_broken
from tests.support.chaos import Chaos


def test_a_death_and_the_epoch_after_it_can_be_followed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aiodist.group")
    chaos = Chaos()

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 2:
            crash(chaos, 2, 0.01)
        await until_broken(pg)
        new = await pg.rebuild()
        assert await new.agree()

    run(3, main, chaos)
    for words in (
        "group 'world' breaks on rank 0: ",
        "rank 2 takes no part in epoch 0 any more",
        "rank 0 drafts ",
        "call 1 for epoch 1 is decided: Decided(",
        "group 'world' closes here, after ",
    ):
        assert words in caplog.text, words
