"""The order in which receives end that have their messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aiodist.backends.host.ends import Ends
from aiodist.backends.host.held_up import HeldUp
from tests.backends.host.test_held_up import handle


class Scene:
    """Receives of tag 0 from rank 1, by their names."""

    def __init__(self) -> None:
        self.held_up = HeldUp()
        channels: Any = SimpleNamespace(loop=asyncio.get_running_loop())
        self.ends = Ends(self.held_up, channels)
        self.ended: list[str] = []

    def post(self) -> Any:
        """Post one whose caller has no result yet."""
        work = handle(untold=True)
        self.held_up.is_behind(work, 0, 1)
        return work

    def has_come(self, work: Any, name: str) -> None:
        """Have the message of one come."""

        def end() -> None:
            work.ended = True
            self.ended.append(name)

        if self.ends.waits(work, 0, 1):
            self.ends.add(work, 0, 1, end)
        else:
            end()


async def test_each_ends_when_the_one_before_it_is_told() -> None:
    scene = Scene()
    works = [scene.post() for _ in range(3)]
    for name, work in zip("abc", works, strict=True):
        scene.has_come(work, name)
    assert scene.ended == ["a"]
    for count in (2, 3):
        works[count - 2].untold = False
        await asyncio.sleep(0)
        assert scene.ended == ["a", "b", "c"][:count]
        assert scene.ends.holds(0) == (count < 3)


async def test_one_that_nobody_awaits_holds_up_the_next_for_two_turns() -> None:
    scene = Scene()
    works = [scene.post() for _ in range(3)]
    for name, work in zip("abc", works, strict=True):
        scene.has_come(work, name)
    seen = []
    for _ in range(4):
        await asyncio.sleep(0)
        seen.append(len(scene.ended))
    assert seen == [1, 2, 2, 3]


async def test_none_waits_where_all_are_told() -> None:
    scene = Scene()
    first, second = scene.post(), scene.post()
    scene.has_come(first, "a")
    first.untold = False
    scene.has_come(second, "b")
    assert scene.ended == ["a", "b"]


async def test_none_ends_once_they_were_cleared() -> None:
    scene = Scene()
    works = [scene.post() for _ in range(3)]
    for name, work in zip("abc", works, strict=True):
        scene.has_come(work, name)
    scene.ends.clear()
    for _ in range(5):
        await asyncio.sleep(0)
    assert scene.ended == ["a"]


async def test_an_end_that_clears_them_ends_none_behind_it() -> None:
    scene = Scene()
    works = [scene.post() for _ in range(3)]
    scene.has_come(works[0], "a")
    scene.ends.add(works[1], 0, 1, scene.ends.clear)
    scene.has_come(works[2], "c")
    for _ in range(5):
        await asyncio.sleep(0)
    assert scene.ended == ["a"]
