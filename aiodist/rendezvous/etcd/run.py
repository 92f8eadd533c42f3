"""A job's run in etcd: what begins with its first process and ends with its last.

etcd outlives jobs, so what a job leaves there must not meet the next one. All processes of a run share a
lease; everything they write hangs on it, and is below the run's own prefix:

    /<prefix>/<job>/run                 the id of the run, which is its lease's
    /<prefix>/<job>/client/<client>     who is there; on a short lease of its own
    /<prefix>/<job>/<run>/…             what the run holds

Rules:
- A process joins the run that is there if any of its processes is there too; else a new run begins, and
  what is left of the old one goes, at once.
- Everything that is asked has the condition that the run is still the same: who was away so long that it
  ended is told so, and changes nothing.
- The last to leave takes the run along. Where all die, the run ends RUN_SECONDS later by itself; a process
  that comes after CLIENT_SECONDS finds nobody, and begins a new one. One of the same host need not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from urllib.parse import quote

from aiodist.base.errors import AiodistError, RendezvousError, RendezvousTimeout
from aiodist.base.sanitize import one_line
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.alive import is_gone, this_process
from aiodist.rendezvous.etcd.gateway import Gateway
from aiodist.rendezvous.etcd.refusals import LeaseExists, NoLease
from aiodist.rendezvous.etcd.words import Item, Json, Range, TransactionOutcome

RUN_SECONDS = 60
"""Seconds that a run lasts without any of its processes."""

CLIENT_SECONDS = 10
"""Seconds that a process counts as there after its last sign of life."""

_KEEP_SECONDS = 3.0  # between signs of life
_ASKED_AT_ONCE = 16  # processes whether they are dead, at a time


def lost_error() -> RendezvousError:
    """Error of a process whose run is over."""
    return RendezvousError(
        "etcd does not know this run of the job any more",
        hint="Every process was cut off from etcd for over a minute, or a new run began; start the job again",
    )


class EtcdRun:
    """Part of this process in a run. Make it with `await Run.join(…)`; `aclose` leaves it.

    Args:
        on_lost: called once if the run ends, with the error, while this process is in it.

    Attributes:
        client: what names this process in etcd.
        lease: the run's lease.
        base: what every key of the run begins with.
        on_replaced: called once if another run is found in the place of this one.
    """

    def __init__(self, gateway: Gateway, job: str, on_lost: Callable[[AiodistError], None]) -> None:
        self.client = secrets.token_hex(8).encode()
        self.lease = 0
        self.base = b""
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._root = f"/{gateway.place.prefix}/{quote(job, safe='')}/".encode()
        self._key = self._root + b"run"
        self._clients = self._root + b"client/"
        self._mine = self._clients + self.client
        self._id = b""
        self._own_lease = 0
        self._on_lost = on_lost
        self.on_replaced: Callable[[], object] = lambda: None
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def join(
        cls, gateway: Gateway, job: str, deadline: float, on_lost: Callable[[AiodistError], None]
    ) -> EtcdRun:
        """Join the job's run, or begin one; until `deadline` (loop time)."""
        self = cls(gateway, job, on_lost)
        while not await self._enter(deadline):
            pass
        self.base = self._root + self._id + b"/"
        self._keeper = self._loop.create_task(self._keep())
        return self

    async def _enter(self, deadline: float) -> bool:
        """Try once to enter; False where another process was faster, or a dead one was in the way."""
        reads = [words.get(self._key), words.get_all(self._clients, limit=_ASKED_AT_ONCE)]
        run, clients = (await self._ask([], reads, (), deadline)).ranges
        found = run.item
        if gone := [client for client in clients.items if is_gone(client.value)]:
            for client in gone:
                same = [words.unchanged(client.key, client.revision)]
                await self._ask(same, [words.delete(client.key)], (), deadline)
            return False
        self._own_lease = await self.grant(CLIENT_SECONDS, deadline)
        here = words.put(self._mine, this_process(), self._own_lease)
        if found is not None and clients.count:
            self._id, self.lease = found.value, _lease_of(found)
            conditions, begin = [words.holds(self._key, found.value)], [here]
        else:
            self.lease = await self.grant(RUN_SECONDS, deadline)
            self._id = b"%016x" % self.lease
            conditions = [
                words.unchanged(self._key, found.revision if found is not None else 0),
                words.none_in(self._clients, words.after(self._clients)),
            ]
            begin = [words.put(self._key, self._id, self.lease), here]
            if found is not None:
                begin.append(words.delete_all(self._root + found.value + b"/"))
        try:
            return (await self._ask(conditions, begin, (), deadline)).succeeded
        except NoLease:
            return False

    async def _ask(
        self, conditions: list[Json], success: Sequence[Json], failure: Sequence[Json], deadline: float
    ) -> TransactionOutcome:
        body = words.txn(conditions, success, failure)
        return words.outcome(*await self._gateway.call("/v3/kv/txn", body, deadline))

    # What others ask.

    def is_here(self, client: bytes) -> bytes:
        """The key that is there as long as a process is."""
        return self._clients + client

    async def txn(
        self,
        conditions: list[Json],
        success: Sequence[Json],
        failure: Sequence[Json] = (),
        *,
        deadline: float,
    ) -> TransactionOutcome:
        """Carry out a transaction in this run.

        Raises:
            RendezvousError: the run is over.
            NoLease: a lease other than the run's has run out.
        """
        same = words.holds(self._key, self._id)
        found = await self._ask([same, *conditions], success, [words.get(self._key), *failure], deadline)
        if not found.succeeded:
            run = found.ranges.pop(0).item
            if run is None or run.value != self._id:
                self._lose(lost_error())
                raise lost_error()
        return found

    async def read(self, *operations: Json, deadline: float) -> list[Range]:
        """Read, all at one time. Errors as of `txn`."""
        return (await self.txn([], operations, deadline=deadline)).ranges

    async def grant(self, seconds: int, deadline: float, lease: int = 0) -> int:
        """Grant a new lease, of this id or some other; etcd may make it somewhat longer."""
        lease = lease or secrets.randbits(62) | 1  # chosen here, so that another attempt makes no second one
        with contextlib.suppress(LeaseExists):
            await self._gateway.call("/v3/lease/grant", {"TTL": str(seconds), "ID": str(lease)}, deadline)
        return lease

    async def renew(self, lease: int, deadline: float) -> bool:
        """Let a lease run anew; False where it has run out."""
        answer, _ = await self._gateway.call("/v3/lease/keepalive", {"ID": str(lease)}, deadline)
        return words.time_left(answer) > 0

    async def revoke(self, lease: int, deadline: float) -> bool:
        """End a lease now, and with it its keys → whether it was there."""
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": str(lease)}, deadline)
        except NoLease as error:
            return error.again  # most likely it was there for an earlier attempt
        return True

    # Staying.

    async def _keep(self) -> None:
        """Say every now and then that this process lives. etcd may be away as long as it likes."""
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            deadline = self._loop.time() + CLIENT_SECONDS
            try:
                if not await self.renew(self.lease, deadline):
                    raise lost_error()
                if not await self.renew(self._own_lease, deadline):
                    self._own_lease = await self.grant(CLIENT_SECONDS, deadline)
                    await self.txn(
                        [], [words.put(self._mine, this_process(), self._own_lease)], deadline=deadline
                    )
            except (RendezvousTimeout, NoLease):
                continue
            except AiodistError as error:
                self._lose(error)
                await self._until_replaced()
                self.on_replaced()
                return

    async def _until_replaced(self) -> None:
        """Return when another run is there. Processes that were all cut off from etcd may still go on."""
        while True:
            try:
                deadline = self._loop.time() + CLIENT_SECONDS
                run = (await self._ask([], [words.get(self._key)], (), deadline)).ranges[0].item
            except (AiodistError, NoLease):
                run = None
            if run is not None and run.value != self._id:
                return
            await asyncio.sleep(_KEEP_SECONDS)

    def _lose(self, error: AiodistError) -> None:
        on_lost, self._on_lost = self._on_lost, lambda error: None
        on_lost(error)

    async def aclose(self, patience: float) -> None:
        """Leave; whoever is the last takes the run along. `patience`: seconds."""
        self._on_lost = lambda error: None
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        others = [
            words.none_in(self._clients, self._mine),
            words.none_in(self._mine + b"\0", words.after(self._clients)),
        ]
        everything = [words.delete(self._key), words.delete(self._mine), words.delete_all(self.base)]
        deadline = self._loop.time() + patience
        with contextlib.suppress(AiodistError, NoLease):
            await self.txn(others, everything, [words.delete(self._mine)], deadline=deadline)
            await self.revoke(self._own_lease, deadline)


def _lease_of(run: Item) -> int:
    try:
        return int(run.value, 16)
    except ValueError:
        raise RendezvousError(
            f"etcd holds something else than a run of a job under {one_line(run.key)}",
            hint="Remove it, or put another prefix into the URL: etcd://host:port/prefix",
        ) from None
