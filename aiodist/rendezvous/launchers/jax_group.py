"""jax.distributed, where it is initialised: it says which process this is, and its store leads to ours.

JAX's coordinator listens at JAX_COORDINATOR_ADDRESS, so rank 0 listens elsewhere, and leaves its address in
the coordinator's key-value store. jax is never imported here.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiodist.base.errors import RendezvousError
from aiodist.base.sanitize import one_line
from aiodist.rendezvous.hosting import place_at
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.launchers.address_exchange import meet_by
from aiodist.rendezvous.meeting_place import NOWHERE

_SLICE = 200  # milliseconds of a call that waits, in a thread that nobody can end


def rank_and_size() -> tuple[int, int] | None:
    """This process's number and how many there are; None where JAX's processes have not met here."""
    state = _state()
    if state is None or state.process_id is None or state.num_processes is None:
        return None
    return state.process_id, state.num_processes


async def meet(invitation: Invitation) -> Meeting:
    """Meet where rank 0 says, by what it leaves in the coordinator's store.

    Raises:
        RendezvousError: JAX's processes have parted, or the coordinator fails.
    """
    state = _state()
    if state is None:
        raise RendezvousError(
            "jax.distributed is not initialised any more", hint="Keep it until this group is formed"
        )
    host, _, port = str(state.coordinator_address or "").rpartition(":")
    there = host.strip("[]")
    place = await place_at(invitation, there, int(port)) if there and port.isdecimal() else NOWHERE
    return await meet_by(_JaxStore(state.client), "jax.distributed's store", invitation, there, place)


class _JaxStore:
    """The coordinator's store as `Texts`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def set(self, key: str, value: str) -> None:
        try:
            await asyncio.to_thread(self._client.key_value_set, key, value)
        except RuntimeError as error:  # XlaRuntimeError is one
            raise _fails(error) from None

    async def read(self, key: str) -> str | None:
        return await asyncio.to_thread(self._read, key)

    def _read(self, key: str) -> str | None:
        try:
            value: str = self._client.blocking_key_value_get(key, _SLICE)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise _fails(error) from None
        return value


def _state() -> Any:
    """The state of jax.distributed, if it is loaded and connected; else None."""
    module = sys.modules.get("jax._src.distributed")
    state = getattr(module, "global_state", None)
    return None if getattr(state, "client", None) is None else state


def _fails(error: RuntimeError) -> RendezvousError:
    return RendezvousError(
        f"jax.distributed's store fails: {one_line(str(error), 200)}", hint="See whether its coordinator runs"
    )
