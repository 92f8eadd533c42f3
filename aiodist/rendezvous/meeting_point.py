"""The place where a job meets, and who hosts the store there: one decision, of what is said. Pure.

    what says it                        the way there                       who hosts the store
    store=                              over that store                     the user
    a library that has ranks itself     as its processes tell each other    rank 0
    tcp://host:port                     at that address                     rank 0
    file:///path                        by that file                        whoever comes first
    etcd://host:port,…                  in etcd                             nobody of the job
    a scheme that was registered        as its handler says                 likewise
    env://, the first of these:
        AIODIST_ALONE, world_size=1     alone                               this process
        AIODIST_STORE=etcd://…          in etcd                             nobody of the job
        AIODIST_STORE=host:port         at that address                     the launcher
        a world of one                  alone                               this process
        torchrun's agent has a store    by that store                       rank 0
        mpirun, srun, horovodrun, told  by the launcher's own means         rank 0, or who is first
            no place
        … that torch or JAX wants, too  where it tells at that address      rank 0
        MASTER_ADDR and MASTER_PORT     at that address                     rank 0

A library says it where torch.distributed or jax.distributed is initialised in this process, and nothing but
the environment says where; MPI where backend 'mpi' or Open MPI's mpirun is there, and nothing says where at
all.

`handlers` has a handler for each way. Libraries add schemes; nothing else adds a way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal
from urllib.parse import unquote

from aiodist.base.environment import Placement, plain_host, split_address
from aiodist.base.environment.lone_process import chosen, company_of_rank, company_of_script
from aiodist.base.environment.master_port import shares_port
from aiodist.base.errors import UsageError
from aiodist.rendezvous.invitation import Invitation

_log = logging.getLogger("aiodist.rendezvous")


Host = Literal["this process", "rank 0", "whoever comes first", "nobody of the job"]
"""The host of the store at which a job meets."""


class Way(Enum):
    """Ways in which the processes of a job find the store at which they meet."""

    alone = "alone"
    store = "over the store that was given"
    library = "as their library's processes tell each other"
    address = "at an address"
    file = "by a file"
    etcd = "in etcd"
    scheme = "as the handler of the scheme says"
    agent = "by the store of torchrun's agent"
    pmi = "by PMI"
    open_mpi = "by a file in mpirun's folder, or by PMIx"
    slurm = "at a port of the step"
    horovod = "by horovodrun's store"
    shared = "where rank 0 tells at an address that it lets go of"


@dataclass(frozen=True)
class MeetingPoint:
    """The place where a job meets.

    Attributes:
        way: how its processes find the store.
        host: who hosts the store.
        address: host and port that are known before, of the store or of what leads there; ('', 0) for none.
        path: of the file, or the URL, that leads there; '' for none.
    """

    way: Way
    host: Host
    address: tuple[str, int] = ("", 0)
    path: str = ""


def meeting_point(asked: Invitation) -> MeetingPoint:
    """Decide where this process meets the others of its job.

    Raises:
        UsageError: nothing says where, or what says it has no meaning; or others were started with this
            process, which would be a job of its own.
    """
    if asked.store is not None:
        point = _over_store(asked)
    elif asked.by_library is not None:
        point = MeetingPoint(Way.library, "rank 0")
    else:
        point = SCHEMES.get(asked.parts.scheme, _by_handler)(asked)
    _log.debug("the processes meet %s; %s hosts the store", point.way.value, point.host)
    return point


def standing_point(asked: Invitation) -> MeetingPoint | None:
    """Find where the store of a job stands while it runs, also for a process that has no place in it yet.

    None: its members alone know, or whoever registered the scheme.
    """
    scheme, environ = asked.parts.scheme, asked.environ
    if scheme == "tcp":
        return _at_address(asked)
    if scheme in ("etcd", "etcds"):
        return _in_etcd(asked)
    if scheme != "env":
        return None
    if environ.get("AIODIST_STORE"):
        return _at_launchers_store(asked)
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "")
    if not host or not port.isdecimal() or _has_agent_store(asked) or shares_port(environ):
        return None
    return MeetingPoint(Way.address, "rank 0", (plain_host(host, "MASTER_ADDR"), int(port)))


def begins_job(asked: Invitation) -> bool:
    """Whether this process is one of those that begin the job: something says which rank it is."""
    if asked.environ.get("AIODIST_NEWCOMER"):
        return False  # its launcher started it when the job ran
    if "rank=" in asked.url:
        return True
    try:
        return asked.placement().launcher != "alone"
    except UsageError:
        return False  # only the master's address is set


def says_where(asked: Invitation, *variables: str) -> bool:
    """Whether arguments, or one of these variables, say where to meet, so that no library need be asked."""
    return asked.store is not None or asked.url != "env://" or any(map(asked.environ.get, variables))


def known_place(asked: Invitation) -> Placement:
    """Return the place that something says; alone is not a guess to make where a URL says where to meet."""
    place = asked.placement()
    if place.launcher == "alone":
        raise UsageError(
            f"init_method='{asked.url}' needs rank and world_size",
            hint="Pass rank= and world_size=, add ?rank=…&world_size=… to it, or set RANK and WORLD_SIZE",
        )
    return place


def _over_store(asked: Invitation) -> MeetingPoint:
    if asked.url:
        raise UsageError("pass init_method or store, not both")
    if asked.world_size < 1 or not 0 <= asked.rank < asked.world_size:
        raise UsageError(
            f"store= needs rank and world_size, got rank={asked.rank}, world_size={asked.world_size}",
            hint="Pass 0 ≤ rank < world_size",
        )
    return MeetingPoint(Way.store, "nobody of the job")


# By the scheme of a URL.


def _at_address(asked: Invitation) -> MeetingPoint:
    if not asked.parts.netloc:
        raise UsageError(
            f"init_method='{asked.url}' names no address", hint="Write tcp://host:port, two slashes"
        )
    address = split_address(asked.parts.netloc, "the address in init_method")
    return MeetingPoint(Way.address, "rank 0", address)


def _at_tcp_address(asked: Invitation) -> MeetingPoint:
    point = _at_address(asked)
    if known_place(asked).world_size > 1 and point.address[1] == 0:
        raise UsageError(
            f"init_method='{asked.url}' names no port", hint="The others cannot know which one rank 0 finds"
        )
    return point


def _by_file(asked: Invitation) -> MeetingPoint:
    parts = asked.parts
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise UsageError(f"init_method='{asked.url}' names no file", hint="Write file:///path, three slashes")
    known_place(asked)
    return MeetingPoint(Way.file, "whoever comes first", path=unquote(parts.path))


def _in_etcd(asked: Invitation) -> MeetingPoint:
    return MeetingPoint(Way.etcd, "nobody of the job", path=asked.url)


def _by_handler(asked: Invitation) -> MeetingPoint:
    return MeetingPoint(Way.scheme, "nobody of the job", path=asked.url)


def _by_environment(asked: Invitation) -> MeetingPoint:
    place = asked.placement()
    _log.debug("rank %d of %d, by %s (%s)", place.rank, place.world_size, place.launcher, place.evidence)
    if place.launcher == "alone" and chosen(asked.environ, asked.world_size):
        return MeetingPoint(Way.alone, "this process")
    if asked.environ.get("AIODIST_STORE"):
        return _at_launchers_store(asked)
    if place.world_size == 1:
        _check_alone(asked, place)
        if place.master_addr is None:
            return MeetingPoint(Way.alone, "this process")
    if (point := _by_launcher(asked, place)) is not None:
        return point
    if place.master_addr is None or place.master_port is None:
        missing = "MASTER_ADDR" if place.master_addr is None else "MASTER_PORT"
        raise UsageError(
            f"{missing} is not set, and the world has {place.world_size} processes",
            hint="Start with `aiodist run`, or set MASTER_ADDR to rank 0's host and MASTER_PORT to a port",
        )
    way = Way.shared if shares_port(asked.environ) else Way.address
    return MeetingPoint(way, "rank 0", (place.master_addr, place.master_port))


SCHEMES: dict[str, Callable[[Invitation], MeetingPoint]] = {
    "env": _by_environment,
    "tcp": _at_tcp_address,
    "file": _by_file,
    "etcd": _in_etcd,
    "etcds": _in_etcd,
}
"""Schemes of `init_method` that are known here, and what they mean. Libraries register more."""


# By the environment.


def _at_launchers_store(asked: Invitation) -> MeetingPoint:
    """The store that AIODIST_STORE names: a URL leads to etcd, whose module refuses another one."""
    text = asked.environ["AIODIST_STORE"]
    if "://" in text:
        return MeetingPoint(Way.etcd, "nobody of the job", path=text)
    return MeetingPoint(Way.address, "nobody of the job", split_address(text, "AIODIST_STORE"))


def _has_agent_store(asked: Invitation) -> bool:
    """Whether torchrun's agent listens on MASTER_ADDR:MASTER_PORT, with a store of torch's own."""
    return asked.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _by_launcher(asked: Invitation, place: Placement) -> MeetingPoint | None:
    """The means of the launcher that started this process; None: it has none, or they are not needed."""
    host, port = place.master_addr, place.master_port
    if _has_agent_store(asked):
        return MeetingPoint(Way.agent, "rank 0", (host, port)) if host and port else None
    if place.launcher == "Slurm" and not (host and port):
        return MeetingPoint(Way.slurm, "rank 0")
    if place.launcher == "MPICH" and not host:
        return MeetingPoint(Way.pmi, "rank 0")
    if place.launcher == "Open MPI" and not host:
        return MeetingPoint(
            Way.open_mpi, "whoever comes first" if place.local_world_size == place.world_size else "rank 0"
        )
    if place.launcher == "Horovod" and not host:
        name, number = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
        where = asked.environ[name]
        text = f"[{where}]" if ":" in where else where
        text = f"{text}:{asked.environ.get(number, '')}"
        return MeetingPoint(Way.horovod, "rank 0", split_address(text, f"{name} and {number}"))
    if place.launcher == "JAX" and not host:
        name = "JAX_COORDINATOR_ADDRESS"  # where JAX's own first process will listen
        return MeetingPoint(Way.shared, "rank 0", split_address(asked.environ[name], name))
    return None


def _check_alone(asked: Invitation, place: Placement) -> None:
    """Refuse, or warn of, a job of one where others seem to have been started with this process."""
    environ = asked.environ
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
            f"{company.said}, but no setting says where this process meets the others: each would be a job "
            "of its own",
            hint=company.hint,
        )
    _log.warning(
        "%s, but no setting says which process of how many this is: it is a job of its own. %s",
        company.said,
        company.hint,
    )
