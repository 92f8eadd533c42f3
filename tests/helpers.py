"""What several files of tests ask."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from aiodist.errors import AiodistError


async def error_of(awaitable: Awaitable[Any]) -> BaseException:
    """What an awaitable raises."""
    try:
        await awaitable
    except AiodistError as error:
        return error
    raise AssertionError("nothing was raised")


def memory_mapped() -> int:
    """How many mappings of arenas and segments this process has."""
    with open("/proc/self/maps") as file:
        return sum("memfd:aiodist" in line for line in file)
