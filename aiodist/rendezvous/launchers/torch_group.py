"""torch.distributed, where it is initialised: it says which rank this is, and its store leads to ours.

Whoever starts torch (Lightning, Ray Train, Accelerate, a script) has told it rank and size, perhaps by no
variable at all, and its rank 0 listens on MASTER_PORT. So rank 0 listens elsewhere, and leaves its address in
torch's store.

A group of torch's that is ours (`integrations.torch`) meets by torch's store, too, which may hold the address
of a group that had its name before. So rank 0 takes the address back when its group is formed, or is not: an
address stands there only while rank 0 listens for that group.

torch is never imported here. Its store answers one question at a time, and a question that waits keeps the
others out, also torch's own: so nothing here waits in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from aiodist.base.errors import RendezvousError
from aiodist.base.sanitize import one_line
from aiodist.rendezvous.hosting import place_at
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.launchers.address_exchange import key_of, meet_by
from aiodist.rendezvous.meeting_place import NOWHERE

TAKEN_BACK = "past"
"""Value of what rank 0 has left in a store of torch's, and which holds no more. (A key that is deleted while
another process gets its value would have that one wait.)"""


def rank_and_size() -> tuple[int, int] | None:
    """Rank and world size of torch's default group; None where there is none, or it is without us."""
    torch = _distributed()
    if torch is None:
        return None
    rank, size = torch.get_rank(), torch.get_world_size()
    return (rank, size) if 0 <= rank < size else None


async def meet(invitation: Invitation) -> Meeting:
    """Meet where rank 0 says, by what it leaves in torch's store.

    Raises:
        RendezvousError: torch's group is gone, or its store fails.
    """
    torch = _distributed()
    if torch is None:
        raise RendezvousError(
            "torch.distributed is not initialised any more", hint="Keep its group until this one is formed"
        )
    return await meet_over(torch.distributed_c10d._get_default_store(), invitation)


async def meet_over(store: Any, invitation: Invitation, name: str | None = None) -> Meeting:
    """Meet where rank 0 says, by what it leaves in a store of torch's; `name` and errors as of `meet_by`."""
    texts = _TorchStore(store)
    host, port = _address_of(store)
    place = await place_at(invitation, host, port) if host else NOWHERE
    there = host or invitation.environ.get("MASTER_ADDR", "")
    return await meet_by(texts, "torch.distributed's store", invitation, there, place, name)


GROUP = "group"
"""Name of the address of a group that has a store of torch's for itself."""


@contextlib.contextmanager
def address_in(store: Any, invitation: Invitation) -> Iterator[None]:
    """Within it a group meets over a store of torch's that is this group's alone; rank 0's address is taken
    back at its end, and all have seen it then."""
    try:
        yield
    finally:
        if invitation.rank == 0:
            with contextlib.suppress(RuntimeError):  # the store is gone, and so is the address
                store.set(key_of(invitation, GROUP), TAKEN_BACK)


class _TorchStore:
    """torch's store as `Texts`. Its calls block, for a moment, so each is made by a thread."""

    def __init__(self, store: Any) -> None:
        self.store = store

    async def set(self, key: str, value: str) -> None:
        await self._ask(partial(self.store.set, key, value))

    async def read(self, key: str) -> str | None:
        if not await self._ask(partial(self.store.check, [key])):
            return None
        value: bytes = await self._ask(partial(self.store.get, key))
        text = value.decode(errors="replace")
        return None if text == TAKEN_BACK else text

    async def _ask(self, question: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, question)
        except RuntimeError as error:  # torch's DistError is one
            raise RendezvousError(
                f"torch.distributed's store fails: {one_line(str(error), 200)}",
                hint="See whether torch's rank 0 still runs",
            ) from None


def _distributed() -> Any:
    """torch.distributed, if it is loaded and has a default group; else None."""
    torch = sys.modules.get("torch.distributed")
    if torch is None or not getattr(torch, "is_available", bool)() or not torch.is_initialized():
        return None
    return torch


def _address_of(store: Any) -> tuple[str, int]:
    """The host that has torch's store, by any of its names, and the port; ('', 0) for a store in files."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", "")), int(getattr(store, "port", 0))
