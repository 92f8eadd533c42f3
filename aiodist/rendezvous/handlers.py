"""From what a user and a launcher say to a meeting: `meeting_point` decides where, and here is how.

Whoever hosts the store lingers at close, bounded, until the others have left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import cast

from aiodist.base.errors import RendezvousError, UsageError
from aiodist.net.sockets import is_in_use
from aiodist.net.wire.handshake import TORCH_TOO
from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.hash_store import HashStore
from aiodist.rendezvous.hosting import announced_address, host_or_join, join, meet_by_file
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.meeting_place import NOWHERE, MeetingPlace
from aiodist.rendezvous.meeting_point import SCHEMES, MeetingPoint, Way, meeting_point
from aiodist.rendezvous.store import Store

Handler = Callable[[Invitation], Awaitable[Meeting]]
_handlers: dict[str, Handler] = {}  # of schemes that were registered


def register_rendezvous_handler(scheme: str, handler: Handler) -> None:
    """Teach `init_method` a scheme.

    Args:
        scheme: what stands before '://'.
        handler: awaited with an `Invitation`; returns a `Meeting`, whose parts it has opened.

    Raises:
        UsageError: the scheme has a handler, or is none.
    """
    if not scheme or not scheme.replace("+", "").replace("-", "").isalnum() or scheme != scheme.lower():
        raise UsageError(f"'{scheme}' is not a URL scheme", hint="Use lower-case letters, digits, + and -")
    if scheme in SCHEMES or scheme in _handlers:
        raise UsageError(f"the scheme '{scheme}' has a rendezvous handler already")
    _handlers[scheme] = handler


async def meet(asked: Invitation) -> Meeting:
    """Find, or host, the store at which the job meets. Nobody has been waited for but the store's host.

    Raises:
        UsageError: what is asked for, or an environment variable, has no meaning.
        RendezvousError: the port to host on is in use, or is not of this host.
        RendezvousTimeout: the store cannot be reached.
        AuthenticationError: it is of another job, version or secret.
    """
    point = meeting_point(asked)
    return await _WAYS[point.way](asked, point)


async def connect(asked: Invitation, point: MeetingPoint) -> Store:
    """Connect to the store that stands at a point (`standing_point`), without a place in the job.

    Raises:
        RendezvousTimeout: it cannot be reached.
        AuthenticationError: it is of another job, version or secret.
    """
    if point.way is Way.etcd:
        module = import_module("aiodist.rendezvous.etcd.meeting")
        return cast(
            "Store", await module.connect(point.path, asked.job, asked.timeout, environ=asked.environ)
        )
    place = MeetingPlace.at(*point.address) if point.host == "rank 0" else NOWHERE
    return await TcpStore.connect(
        *(*point.address, asked.job, asked.secret, asked.timeout), tls=asked.tls, place=place
    )


# The ways.


async def _alone(asked: Invitation, _point: MeetingPoint) -> Meeting:
    return Meeting(HashStore(asked.timeout), 0, 1, None, announced_address(asked.tuning, "127.0.0.1"))


async def _over_store(asked: Invitation, _point: MeetingPoint) -> Meeting:
    assert asked.store is not None
    address = announced_address(asked.tuning, asked.store.address)
    return Meeting(asked.store, asked.rank, asked.world_size, address=address, owns_store=False)


async def _by_library(asked: Invitation, _point: MeetingPoint) -> Meeting:
    assert asked.by_library is not None
    return await asked.by_library(asked)


async def _at_address(asked: Invitation, point: MeetingPoint) -> Meeting:
    if point.host == "rank 0":
        try:
            return await host_or_join(asked, *point.address)
        except RendezvousError as error:
            if asked.parts.scheme != "env" or not is_in_use(error):
                raise
            raise RendezvousError(error.message, hint=f"{error.hint}. {TORCH_TOO}") from None
    return await join(asked, *point.address, instance=asked.instance)


async def _by_file(asked: Invitation, point: MeetingPoint) -> Meeting:
    return await meet_by_file(asked, point.path)


async def _by_scheme(asked: Invitation, _point: MeetingPoint) -> Meeting:
    handler = _handlers.get(asked.parts.scheme)
    if handler is None:
        known = ", ".join(f"{scheme}://" for scheme in (*SCHEMES, *_handlers))
        raise UsageError(f"init_method='{asked.url}' has no known scheme", hint=f"There are: {known}")
    return await handler(asked)


def _foreign(name: str) -> Callable[[Invitation, MeetingPoint], Awaitable[Meeting]]:
    """The `meet` of a module for a foreign format, which is loaded when it is used."""

    async def meet_there(asked: Invitation, point: MeetingPoint) -> Meeting:
        module = import_module(f"aiodist.rendezvous.{name}")
        return cast("Meeting", await module.meet(asked, point))

    return meet_there


_WAYS: dict[Way, Callable[[Invitation, MeetingPoint], Awaitable[Meeting]]] = {
    Way.alone: _alone,
    Way.store: _over_store,
    Way.library: _by_library,
    Way.address: _at_address,
    Way.file: _by_file,
    Way.scheme: _by_scheme,
    Way.etcd: _foreign("etcd.meeting"),
    Way.agent: _foreign("launchers.agent_store"),
    Way.pmi: _foreign("launchers.pmi"),
    Way.open_mpi: _foreign("launchers.open_mpi"),
    Way.slurm: _foreign("launchers.slurm"),
    Way.horovod: _foreign("launchers.horovod"),
    Way.shared: _foreign("launchers.shared_port"),
}
