"""A call with an argument that it does not have: the error says which one was meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist import broadcast, portal
from aiodist.group import ProcessGroup
from aiodist.group.misspelled import note_what_was_meant
from aiodist.testing.cluster import run_cluster

ONE = np.ones(1)
Call = Callable[[Any], Any]

CASES: list[tuple[str, Call]] = [
    (r"all_reduce takes tensor, op, .*; did you mean op=\?", lambda pg: pg.all_reduce(ONE, operation="sum")),
    (r"reduce takes .*; did you mean dst=\?", lambda pg: pg.reduce(ONE, src=0)),
    (r"broadcast takes .*; did you mean src=\?", lambda pg: pg.broadcast(ONE, dst=0)),
    (r"broadcast takes .*; did you mean src=\?", lambda pg: pg.broadcast(ONE, root=0)),
    (r"send takes .*; did you mean dst=\?", lambda pg: pg.send(ONE, dest=0)),
    (r"recv takes .*; did you mean src=\?", lambda pg: pg.recv(ONE, source=0)),
    (r"send_object takes .*; did you mean dst=\?", lambda pg: pg.send_object(1, to=0)),
    (r"all_gather takes .*; did you mean out=\?", lambda pg: pg.all_gather(ONE, output=ONE)),
    (r"barrier takes .*; did you mean async_op=\?", lambda pg: pg.barrier(asyncop=True)),
    (r"barrier takes .*; did you mean timeout=\?", lambda pg: pg.barrier(time_out=3)),
    (
        r"all_gather_object takes .*; did you mean allow_pickle=\?",
        lambda pg: pg.all_gather_object(1, pickle=1),
    ),
    ("barrier takes timeout, async_op", lambda pg: pg.barrier(colour="red")),
    (r"all_reduce takes .*; did you mean op=\?", lambda pg: dist.all_reduce(ONE, reduction="sum")),  # type: ignore[call-arg]
    (r"broadcast takes .*; did you mean src=\?", lambda pg: broadcast(ONE, root=0)),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("words", "call"), CASES, ids=[case[0] for case in CASES])
async def test_the_error_says_what_was_meant(words: str, call: Call) -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(TypeError) as caught:
            call(pg)
        for _ in range(2):  # once
            note_what_was_meant(caught.value, type(pg))
        (note,) = caught.value.__notes__
        assert re.fullmatch(words, note), note

    await run_cluster(1, main)


def of_the_same_name() -> None:
    def broadcast() -> None:
        """Has the name of one of aiodist's."""

    broadcast(operation=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("wrong", [of_the_same_name, lambda: int("x", bass=3), lambda: ONE + None])  # type: ignore
def test_other_errors_have_no_note(wrong: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        wrong()
    note_what_was_meant(caught.value, ProcessGroup)
    note_what_was_meant(None, ProcessGroup)
    assert not hasattr(caught.value, "__notes__")


def test_it_is_made_where_the_error_leaves_the_group() -> None:
    async def main() -> None:
        async with dist.init_process_group(world_size=1) as pg:
            pg.broadcast(ONE, dst=0)  # type: ignore[call-arg]

    with pytest.raises(TypeError) as caught:
        dist.run(main())
    assert "did you mean src=?" in caught.value.__notes__[0]
    with pytest.raises(TypeError) as caught, portal.init_process_group(world_size=1) as pg:
        pg.broadcast(ONE, dst=0)  # type: ignore[call-arg]
    assert "did you mean src=?" in caught.value.__notes__[0]
