"""The default group: one a loop, overridden by a context."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, cast

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.default import default_group, find_default, override, set_default


class Fake:
    """Stands for a group."""


def fake() -> ProcessGroup:
    return cast("ProcessGroup", Fake())


async def test_set_find_forget() -> None:
    assert find_default() is None
    with pytest.raises(dist.UsageError, match=r"does not exist on this loop.*init_process_group"):
        default_group()
    group = fake()
    set_default(group)
    try:
        assert find_default() is default_group() is group
    finally:
        set_default(None)
    assert find_default() is None
    set_default(None)


async def test_each_loop_has_its_own() -> None:
    set_default(fake())

    async def elsewhere() -> Any:
        return find_default()

    try:
        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) is None
    finally:
        set_default(None)


async def test_context_overrides_and_tasks_inherit() -> None:
    common, own = fake(), fake()
    set_default(common)

    async def inner() -> Any:
        return find_default()

    async def rank() -> Any:
        override.set(own)
        return await asyncio.create_task(inner())

    try:
        assert await asyncio.create_task(rank()) is own
        assert find_default() is common
    finally:
        set_default(None)


def test_without_a_loop_the_error_says_how_to_run_one() -> None:
    assert find_default() is None
    with pytest.raises(dist.UsageError, match=r"no event loop is running here.*dist\.run\(main\(\)\)"):
        default_group()


def test_a_loop_that_is_gone_keeps_no_group_alive() -> None:
    async def main() -> weakref.ref[Any]:
        group = fake()
        set_default(group)
        return weakref.ref(group)

    group = asyncio.run(main())
    gc.collect()
    assert group() is None
