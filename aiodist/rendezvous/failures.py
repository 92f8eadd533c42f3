"""Failures of a store, as its users see them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiodist.base.errors import (
    AiodistError,
    LeaseLost,
    RendezvousError,
    RendezvousTimeout,
    StoreFull,
    StoreReplaced,
    UsageError,
)

_ERRORS: dict[str, type[RendezvousError]] = {
    "full": StoreFull,
    "lease": LeaseLost,
    "older": StoreReplaced,
}


def error_of(kind: str, message: str, hint: str, missing: Sequence[int]) -> AiodistError:
    """The exception for a `Failure` of the machine, or a `RefusedError`."""
    if kind == "usage":
        return UsageError(message, hint=hint)
    if kind == "timeout":
        return RendezvousTimeout(message, missing=missing, hint=hint)
    return _ERRORS.get(kind, RendezvousError)(message, hint=hint)


def closed_error() -> RendezvousError:
    """Error of a closed store that is still used."""
    return RendezvousError("the store is closed", hint="Close it after its last use")


def again(error: AiodistError) -> RendezvousError:
    """A copy of an error for another reader: one object, raised in many tasks, collects all their traces."""
    kind = type(error) if isinstance(error, RendezvousError) else RendezvousError
    return kind(error.message, hint=error.hint)


def check_use(loop: asyncio.AbstractEventLoop, closed: AiodistError | None) -> None:
    """Raise where a connected store must not be used: on another loop, or once it is `closed`."""
    if asyncio.get_running_loop() is not loop:
        raise UsageError("this store belongs to another event loop", hint="Connect once in each loop")
    if closed is not None:
        raise again(closed)
