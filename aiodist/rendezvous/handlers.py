"""From an `init_method` URL to a meeting: where the store is, and who hosts it.

    env://                 what the launcher set: AIODIST_STORE, or MASTER_ADDR and MASTER_PORT; else by the
                           launcher's own means, see `launchers`
    tcp://host:port        rank 0 hosts the store there
    file:///path           whoever comes first hosts it and writes its address into the file
    etcd://host:port,…     and others of the table `foreign.SCHEMES`: nobody of the job hosts the store

`?rank=…&world_size=…` may follow. Libraries add schemes with `register_rendezvous_handler`.

Whoever hosts the store lingers at close, bounded, until the others have left.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from urllib.parse import parse_qs, unquote, urlsplit

from aiodist.environment import (
    Placement,
    chosen,
    company_of_rank,
    company_of_script,
    split_address,
    store_address,
    store_url,
    tuning,
)
from aiodist.errors import UsageError
from aiodist.rendezvous.foreign import SCHEMES, meet_by_launcher, meet_by_scheme
from aiodist.rendezvous.hash_store import HashStore
from aiodist.rendezvous.hosting import host_or_join, join, known_place, meet_by_file, told_address
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.timeouts import Timeout, seconds

_log = logging.getLogger("aiodist.rendezvous")

Handler = Callable[[Invitation], Awaitable[Meeting]]
_handlers: dict[str, Handler] = {}


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
    if scheme in _handlers:
        raise UsageError(f"the scheme '{scheme}' has a rendezvous handler already")
    _handlers[scheme] = handler


async def rendezvous(
    url: str,
    rank: int = -1,
    world_size: int = -1,
    timeout: Timeout = None,
    environ: Mapping[str, str] | None = None,
    secret: bytes = b"",
) -> Meeting:
    """Find, or host, the store that a URL leads to. Nobody has been waited for but the store's host.

    Args:
        url: the `init_method`.
        rank: global rank, -1 to take it from the URL or the environment.
        world_size: processes, -1 likewise.
        timeout: seconds for reaching the store, and its default; AIODIST_TIMEOUT or 300 s where None.
        environ: the environment variables; none where None.
        secret: what the processes of the job know.

    Raises:
        UsageError: the URL or an environment variable has no meaning.
        RendezvousError: the port to host on is in use, or is not of this host.
        RendezvousTimeout: the store cannot be reached.
        AuthenticationError: it is of another job, version or secret.
    """
    environ = {} if environ is None else environ
    limit = tuning(environ).timeout if timeout is None else seconds(timeout)
    parts = urlsplit(url)
    handler = _handlers.get(parts.scheme)
    if handler is None:
        known = ", ".join(f"{scheme}://" for scheme in _handlers)
        raise UsageError(f"init_method='{url}' has no known scheme", hint=f"There are: {known}")
    query = parse_qs(parts.query)
    rank = rank if rank >= 0 else _number(query, "rank", url)
    world_size = world_size if world_size >= 0 else _number(query, "world_size", url)
    return await handler(Invitation(url, rank, world_size, limit, environ, secret))


def _number(query: dict[str, list[str]], name: str, url: str) -> int:
    values = query.get(name, ["-1"])
    if len(values) != 1 or not values[0].removeprefix("-").isdecimal():
        raise UsageError(f"{name} in init_method='{url}' is not a number")
    return int(values[0])


# The schemes.


async def _env(invitation: Invitation) -> Meeting:
    environ = invitation.environ
    place = invitation.placement()
    _log.debug("rank %d of %d, by %s (%s)", place.rank, place.world_size, place.launcher, place.evidence)
    if place.launcher == "alone" and chosen(environ, invitation.world_size):
        return _alone(invitation)
    if (url := store_url(environ)) is not None:
        return await meet_by_scheme(replace(invitation, url=url))
    if (address := store_address(environ)) is not None:
        return await join(invitation, place, *address)
    if place.world_size == 1:
        _look_around(environ, place)
        if place.master_addr is None:
            return _alone(invitation)
    if (meeting := await meet_by_launcher(invitation, place)) is not None:
        return meeting
    if place.master_addr is None or place.master_port is None:
        missing = "MASTER_ADDR" if place.master_addr is None else "MASTER_PORT"
        raise UsageError(
            f"{missing} is not set, and the world has {place.world_size} processes",
            hint="Start with `aiodist run`, or set MASTER_ADDR to rank 0's host and MASTER_PORT to a port",
        )
    return await host_or_join(invitation, place, place.master_addr, place.master_port)


def _look_around(environ: Mapping[str, str], place: Placement) -> None:
    """Refuse, or warn of, a job of one where others seem to have been started with this process."""
    if place.launcher != "alone":
        given = place.launcher != "arguments" and not chosen(environ)
        if given and (other := company_of_rank(environ)) is not None:
            _log.warning("%s, but this is a job of one: %s. %s", other.said, place.evidence, other.hint)
        return
    company = company_of_script(environ)
    if company is None:
        return
    if company.certain:
        raise UsageError(
            f"{company.said}, but nothing says where this process meets the others: each would be a job of "
            "its own",
            hint=company.hint,
        )
    _log.warning(
        "%s, but nothing says which process of how many this is: it is a job of its own. %s",
        company.said,
        company.hint,
    )


def _alone(invitation: Invitation) -> Meeting:
    store = HashStore(invitation.timeout)
    return Meeting(store, 0, 1, None, told_address(invitation.tuning, "127.0.0.1"))


async def _tcp(invitation: Invitation) -> Meeting:
    if not invitation.parts.netloc:
        raise UsageError(
            f"init_method='{invitation.url}' names no address", hint="Write tcp://host:port, two slashes"
        )
    host, port = split_address(invitation.parts.netloc, "the address in init_method")
    place = known_place(invitation)
    if port == 0 and place.world_size > 1:
        raise UsageError(
            f"init_method='{invitation.url}' names no port",
            hint="The others cannot know which one rank 0 finds",
        )
    return await host_or_join(invitation, place, host, port)


async def _file(invitation: Invitation) -> Meeting:
    parts = invitation.parts
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise UsageError(
            f"init_method='{invitation.url}' names no file", hint="Write file:///path, three slashes"
        )
    return await meet_by_file(invitation, known_place(invitation), unquote(parts.path))


register_rendezvous_handler("env", _env)
register_rendezvous_handler("tcp", _tcp)
register_rendezvous_handler("file", _file)
for _scheme in SCHEMES:
    register_rendezvous_handler(_scheme, meet_by_scheme)
