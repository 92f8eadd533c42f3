"""One process's membership of a job: its endpoint, its part of the job, and how it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

from aiodist.backends.choice import BackendChoice
from aiodist.base.environment import check_open_port, split_address
from aiodist.base.environment.clock import clock_id
from aiodist.base.errors import RendezvousError, UsageError
from aiodist.base.sanitize import one_line
from aiodist.base.types import WHOLE
from aiodist.group import ProcessGroup
from aiodist.group.control.liveness import Patience
from aiodist.group.core import GroupCore
from aiodist.group.default import find_default, set_default
from aiodist.group.epochs.beginning import first_epoch
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.newcomer import join_running
from aiodist.group.epochs.regroup import Regroup, regroup_of
from aiodist.group.epochs.world import Settings, World
from aiodist.group.family import Lineage
from aiodist.group.membership.newcomers import OVER
from aiodist.group.membership.presence import LATEST, Presence, run_on_record
from aiodist.group.membership.record import UID_BYTES
from aiodist.group.runtime.answer import Answerer
from aiodist.group.runtime.interrupts import Interrupts
from aiodist.group.runtime.late_worker import Late, by_launcher
from aiodist.group.seats import UNSAID
from aiodist.net.sockets import join_address
from aiodist.observe.ask import ask
from aiodist.observe.exchange import ViewExchange
from aiodist.observe.leaving import LOG_DIR, RUN, keep_own, log_dir
from aiodist.observe.overheard import Overheard
from aiodist.observe.recorder import Recorder
from aiodist.observe.recorder.records import Memory
from aiodist.observe.watcher import Watcher
from aiodist.rendezvous import (
    FileStore,
    Invitation,
    Meeting,
    PrefixStore,
    Store,
    StoreServer,
    TcpStore,
    claim_rank,
    release_rank,
    this_process,
)
from aiodist.rendezvous.file_store import LINGER_SECONDS
from aiodist.transport import SocketEndpoint

ELASTIC = "aiodist/elastic"
"""Key that tells a launcher that a failed worker may be started again alone: its script joins, and the job
has begun. If a worker fails before that, the whole job starts again. b'over': the job has ended, and well."""

_MEMBERS = f"{ELASTIC}/"  # and a worker's rank: what that one is; a worker that was never admitted has no key
_IS_MEMBER, _HAS_LEFT = b"in", b"left"

KEY = "key"
"""Key in a store that a member hosts in the place of a lost one: the job's key, which that one had given."""

MOST_WORDS = 20  # of a command line, that are told to those who look at the job

_HASTE = 1.0  # seconds that a store lingers for its clients when a rank was lost

_log = logging.getLogger("aiodist.group.runtime")

_PARTING = 1.0  # seconds that a store which no longer answers may delay closing


class Member:
    """One process's membership of one job.

    Args:
        meeting: where the job meets; ended with the membership.
        asked: what led there; its timeout, in seconds, is the default of operations.
        group_name: of the world; '' for 'world'.
        choice: which backend carries out what.
        key: of the job, where it was told; '': it follows from the meeting's store.

    Attributes:
        elastic: whether others may join later.
    """

    def __init__(
        self, meeting: Meeting, asked: Invitation, group_name: str, choice: BackendChoice, key: str = ""
    ) -> None:
        name, tuned = group_name or "world", asked.tuning
        self._loop = asyncio.get_running_loop()
        self._meeting = meeting
        self._tuned = tuned
        self._name = f"aiodist/{name}"
        self._job_id = asked.job
        self._secret = meeting.secret or asked.secret
        self._tls = asked.tls
        self._me = this_process()
        self._claimed = False
        self._seat = f"{_MEMBERS}{asked.environ.get('RANK', '')}" if by_launcher(asked.environ) else ""
        self._seated = False
        self._presence: Presence | None = None
        self.elastic = False
        self._servers: list[StoreServer] = []
        self._reached: dict[tuple[str, bytes], TcpStore] = {}  # by address, and who hosts it
        store = PrefixStore(self._name, meeting.store)
        hosted = _hosted(meeting)
        uid = os.urandom(UID_BYTES)
        where = _address_of(meeting.store)
        self._key = key or _key(meeting.store, where, self._job_id, name)
        self._log_dir = log_dir(os.environ)
        self._record = Memory(self._key)
        self._recorder = Recorder(self._record.buffer, os.getpid(), time.monotonic, time.time())
        about = _about(self._job_id, name, where, self._log_dir)
        self._recorder.tell(**about, clock=clock_id(), heartbeat=tuned.heartbeat)
        self._interrupts = Interrupts()
        self._interrupts.begin()
        self._overheard = Overheard(self._loop, self._recorder)
        self._answerer = Answerer(self._recorder, self._record.name, self._loop, threading.get_ident())
        self._exchange = ViewExchange(self._loop, lambda: self.job.store, self._key, ask)
        watcher = Watcher(
            *(self._recorder, self._record, self._key, tuned.stall_after),
            answer=self._answerer.answer,
            exchange=self._exchange,
            calls=self._calls,
        )
        node, local_rank = _seat(asked)
        settings = Settings(
            *(name, self._job_id, tuned.transport, tuned.agreed, asked.timeout),
            limits=tuned.limits,
            patience=Patience(
                *(tuned.heartbeat, tuned.warn_after, tuned.evict_after, tuned.evict_silent_after)
            ),
            uid=uid,
            hosts_store=hosted is not None,
            choice=choice,
            node=node,
            local_rank=local_rank,
            recorder=self._recorder,
            watch=partial(watcher.beat, every=tuned.heartbeat),
            seals=WHOLE if asked.seals_whole else frozenset(),
        )
        self.job = Job(
            *(uid, self._me.decode(errors="replace"), settings, store),
            *(self._open_endpoint, self._leave, self._host_store, self._reach_store),
            store_address=where,
            admitted=self._admitted,
        )

    async def first_epoch(self, launched: bool = False) -> ProcessGroup:
        """Form the job's first world with the others that meet.

        Args:
            launched: a launcher says at the meeting's store which ranks have finished, and come no more.
        """
        meeting, job = self._meeting, self.job
        try:
            late = None
            if launched and await job.store.check([LATEST]):
                late = Late(job.store, meeting.store, meeting.world_size)
                await late.claim(meeting.rank, self._me)
            else:
                await claim_rank(job.store, meeting.rank, self._me)
            self._claimed = True
            endpoint = await self._open_endpoint(meeting.rank, "")
        except BaseException:
            await self._leave()
            raise
        world = World(endpoint, meeting.world_size, job.settings, job.end)
        group = await first_epoch(job, world, late or job.store)
        meeting.formed()
        self._stay(group)
        return group

    async def join(self, timeout: float) -> ProcessGroup:
        """Wait to be admitted to an epoch of a job that runs."""
        group = await join_running(self.job, timeout)
        self._stay(group)
        return group

    async def _admitted(self) -> None:
        """Tell the launcher that this process is a member, and no longer waits for one to admit it."""
        if self.elastic and self._seat:
            await self._meeting.store.set(self._seat, _IS_MEMBER)
            self._seated = True

    def _stay(self, group: ProcessGroup) -> None:
        """Have newcomers see that a member of the run lives, where the store alone does not show it."""
        job = self.job
        if self._tls is not None and group.rank == 0:
            warn_of_plain_traffic(group.backend)
        store, lineage = _behind(self._meeting.store), group._core.lineage
        store.on_replaced = lambda: _replaced(lineage)
        if outlives_jobs(store) and not job.store_host:
            self._presence = job.presence = Presence(
                *(job.store, job.uid, self._me, job.run),
                replaced=lambda: _replaced(lineage),
                reopen=store.reopen if isinstance(store, TcpStore) else None,
            )

    async def _open_endpoint(self, rank: int, _place: str) -> SocketEndpoint:
        check_open_port(self._meeting.address, self._secret, self._tuned.allow_insecure)
        return await SocketEndpoint.open(
            rank=rank,
            job=self._job_id,
            secret=self._secret,
            host=self._meeting.address,
            mode=self._tuned.transport,
            eager_budget=self._tuned.eager_budget,
            tls=self._tls,
        )

    # ── stores that members host ─────────────────────────────────────────────────────────────────────

    async def _host_store(self) -> str:
        """Host the job's store here: where it was, so that newcomers find it, or anywhere on this host."""
        store = self._meeting.store
        if isinstance(store, FileStore):
            found = await FileStore.open(
                *(store.path, self._job_id, self._secret, store.timeout),
                host=self._meeting.address,
                tls=self._tls,
            )
            await self._swap(found)
            return _address_of(found)
        start = partial(StoreServer.start, job=self._job_id, secret=self._secret, tls=self._tls)
        try:
            host, port = split_address(_address_of(store))
            server = await start(host, port)
            if isinstance(before := _behind(store), TcpStore):
                server.place = before.place  # newcomers come as to the one before
        except (RendezvousError, UsageError):
            server = await start(self._meeting.address, 0)
        _log.debug("this process hosts the next epoch's store, at %s:%d", server.host, server.port)
        self._servers.append(server)
        return join_address(server.host, server.port)

    async def _reach_store(self, address: str, hosted_by: bytes) -> Store:
        store = await self._store_at(address, hosted_by)
        if hosted_by == self.job.uid:
            await store.set(KEY, self._key.encode())
        return store

    async def _store_at(self, address: str, hosted_by: bytes) -> Store:
        current = self._meeting.store
        if address == _address_of(current) and isinstance(current, FileStore):
            return PrefixStore(self._name, current)
        client = self._reached.get((address, hosted_by))
        if client is None:
            host, port = split_address(address)
            client = await TcpStore.connect(
                *(host, port, self._job_id, self._secret, self._meeting.store.timeout), tls=self._tls
            )
            self._reached[address, hosted_by] = client
        return PrefixStore(self._name, client)

    async def _swap(self, store: FileStore) -> None:
        """Go over to another store: the file names another host now."""
        old, self._meeting.store = self._meeting.store, store
        with contextlib.suppress(RendezvousError):
            await old.aclose()

    async def _finish(self, epoch: int, size: int) -> None:
        """Note that all was well here. If so at every member, the job is over: nobody need wait to join."""
        store, run = self.job.store, self.job.run
        if run and await run_on_record(store) != run:
            return  # all ranks have begun anew, and that job is not over
        if await store.add(f"over/{epoch}", 1) == size:
            await store.set(OVER, b"1")
            await self._meeting.store.set(ELASTIC, b"over")

    def _calls(self, now: float) -> dict[str, Any] | None:
        """The overview of the services' calls; None before there are services."""
        job: Job | None = getattr(self, "job", None)
        services = None if job is None else job.settings.services
        return None if services is None else services.overview.at(now)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    async def _leave(self) -> None:
        """Give the rank back and leave the meeting."""
        _log.debug("leaving job %s%s", self._job_id, ", in haste" if self.job.hasty else "")
        self._interrupts.end()
        self._exchange.close()
        self._answerer.close()
        self._overheard.close()
        if self._recorder.troubled or self.job.hasty:
            self._recorder.flush()
            await keep_own(self._key, {**os.environ, LOG_DIR: self._log_dir})
        self._recorder.leave()
        self._record.remove()
        with contextlib.suppress(UsageError):
            found = find_default() if asyncio.get_running_loop() is self._loop else None
            regroup = None if found is None else regroup_of(found)
            if regroup is not None and regroup.job is self.job:
                set_default(None)
        try:
            async with asyncio.timeout(_PARTING):
                if self._presence is not None:
                    await self._presence.leave()
                if self.elastic and self.job.finished is not None:
                    await self._finish(*self.job.finished)
                if self._seated:
                    await self._meeting.store.set(self._seat, _HAS_LEFT)
                if self._claimed:
                    await release_rank(
                        PrefixStore(self._name, self._meeting.store), self._meeting.rank, self._me
                    )
        except (RendezvousError, TimeoutError):
            pass  # the host of the store is gone; so is the claim
        finally:
            for client in self._reached.values():
                await client.aclose()
            # A lost rank will not say goodbye to the store either.
            linger = min(_HASTE, LINGER_SECONDS) if self.job.hasty else LINGER_SECONDS
            await self._meeting.aclose(linger)
            for server in self._servers:
                await server.aclose(linger)


@functools.cache  # once in a process
def warn_of_plain_traffic(backend: str) -> None:
    """Warn that TLS does not cover what another library moves by itself; `backend`: as in `get_backend`."""
    others = sorted({part.rpartition(":")[2] for part in backend.split(",")} - {"host"})
    if others:
        _log.warning(
            "TLS is set, but backend %s moves tensors by its own connections, which are not encrypted, and "
            "asks nobody for a certificate; keep its network apart, or use backend 'host'",
            " and ".join(f"'{name}'" for name in others),
        )


async def told_key(store: Store, group_name: str) -> str:
    """The key of a job that runs, where its store says it; '': it follows from the store.

    Args:
        store: where a newcomer meets the job.
        group_name: of the world; '' for 'world'.
    """
    named = PrefixStore(f"aiodist/{group_name or 'world'}", store)
    found = await named.get(KEY) if await named.check([KEY]) else b""
    return found.decode() if _IS_KEY.fullmatch(found) else ""


_IS_KEY = re.compile(rb"[0-9a-f]{12}")


def _key(store: Store, where: str, job: str, name: str) -> str:
    """The key of one run of a job, 12 hexadecimal digits, by which tools find its processes: all processes of
    the run have the same key. Another job has another key, also one of the same name.

    Args:
        store: where it meets.
        where: its address, for a store that does not say which it is.
        job, name: of the job, and its world.
    """
    this = store.instance.hex() or where
    return blake2b(f"{this} {job} {name}".encode(), digest_size=6).hexdigest()


def _replaced(lineage: Lineage[GroupCore]) -> None:
    """Break a world, whichever epoch it is in, for which all ranks have begun another one."""
    if isinstance(regroup := lineage.latest.family.regroup, Regroup):
        regroup.listener.replaced()


def _about(job: str, name: str, address: str, log_dir: str) -> dict[str, Any]:
    """What a process tells of itself to those who look at its job."""
    return {
        "job": job,
        "run": os.environ.get(RUN, ""),
        "name": name,
        "address": address,
        "argv": [one_line(word) for word in sys.argv[:MOST_WORDS]],
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "log_dir": log_dir,
        "output": _output(os.environ),
    }


def _output(environ: Mapping[str, str]) -> str:
    """Where `aiodist run` writes what this process prints, in its folder of logs; '': nobody has said."""
    attempt, local_rank = environ.get("TORCHELASTIC_RESTART_COUNT", ""), environ.get("LOCAL_RANK", "")
    return f"attempt_{attempt}/{local_rank}" if attempt.isdecimal() and local_rank.isdecimal() else ""


def _seat(asked: Invitation) -> tuple[int, int]:
    """The numbers that the launcher gives this process's node, and this process on it, or `UNSAID`."""
    try:
        place = asked.placement()
    except UsageError:  # a newcomer has no place, and need not be told one
        return UNSAID, UNSAID
    node, local = place.node_rank, place.local_rank
    return UNSAID if node is None else node, UNSAID if local is None else local


def _hosted(meeting: Meeting) -> StoreServer | None:
    """The store's server, if this process hosts it."""
    if isinstance(meeting.store, FileStore):
        return meeting.store.server
    return meeting.server


def outlives_jobs(store: Store) -> bool:
    """Whether a store may be there when nobody of a job is, unless one of them hosts it. (In etcd a run ends
    with its last process, and what it left is not seen by the next.)"""
    return isinstance(_behind(store), TcpStore)


def _address_of(store: Store) -> str:
    """The address of a store; '' for one that is not served over TCP."""
    store = _behind(store)
    if isinstance(store, FileStore):
        store = store.client
    return join_address(store.host, store.port) if isinstance(store, TcpStore) else ""


def _behind(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying
    return store
