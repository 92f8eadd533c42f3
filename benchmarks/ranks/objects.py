"""Objects there and back between two ranks, by whatever sends and receives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.harness.cases import WrongResultError

OBJECTS: dict[str, Any] = {
    "small dict": {"path": "/items/17", "user": 4711, "active": True, "scores": [0.5, 0.25], "next": None},
    "list of 1,000 numbers": [number * 0.5 for number in range(1000)],
}

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


async def there_and_back(what: str, rank: int, send: Send, receive: Receive) -> Callable[[], Awaitable[None]]:
    """The exchange of an object between ranks 0 and 1, done once and checked.

    Raises:
        WrongResultError: another object came.
    """
    wanted = OBJECTS[what]
    came: Any = None

    async def there() -> None:
        nonlocal came
        await send(wanted)
        came = await receive()

    async def back() -> None:
        nonlocal came
        came = await receive()
        await send(came)

    once = (there, back)[rank]
    await once()
    if came != wanted:
        raise WrongResultError(f"{what}: {came!r} came, not {wanted!r}")
    return once
