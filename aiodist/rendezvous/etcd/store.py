"""A store in etcd: for jobs that must outlive the host of any one of their processes.

    store = await EtcdStore.connect("etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379", "my job")

Rules:
- Reads are linearizable: what a call returns was true in between, of the whole cluster.
- A change happens once, though it is asked for until etcd answers (`etcd.ledger`). So members may restart, or
  lose their leader, during any call; it takes longer then, up to its timeout.
- Keys last as long as the job's run: any process that has a store open keeps it (`etcd.run`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from aiodist.base.errors import AiodistError, UsageError
from aiodist.base.timeouts import Timeout
from aiodist.net.tasks import Tasks
from aiodist.rendezvous import rules
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.gateway import Gateway
from aiodist.rendezvous.etcd.ledger import ChangeLedger, Decision
from aiodist.rendezvous.etcd.place import place
from aiodist.rendezvous.etcd.refusals import NoLease
from aiodist.rendezvous.etcd.rounds import Gather
from aiodist.rendezvous.etcd.run import EtcdRun, lost_error
from aiodist.rendezvous.etcd.waiting import WaitingCall, read_until
from aiodist.rendezvous.etcd.watching import report
from aiodist.rendezvous.etcd.words import Item
from aiodist.rendezvous.failures import again, check_use, closed_error, error_of
from aiodist.rendezvous.methods import METHODS, check_args
from aiodist.rendezvous.shapes import check_key
from aiodist.rendezvous.store import Store
from aiodist.rendezvous.watch import Watch

T = TypeVar("T")

GRACE_SECONDS = 1.0
"""Seconds that a waiting call may take beyond its timeout to hear from etcd what is missing."""

GOODBYE_SECONDS = 1.0

_log = logging.getLogger("aiodist.store")


@dataclass(slots=True)
class _Lease:
    """A lease that this process gave a key."""

    id: int
    seconds: int
    timer: asyncio.TimerHandle | None = None


class EtcdStore(Store):
    """A store in etcd. Make it with `await EtcdStore.connect(…)`.

    What differs from other stores: a value has to fit into one request of etcd, 1.5 MiB by default. A leased
    key whose holder dies goes when its time is up, in whole seconds and two at least, not sooner.

    Attributes:
        address: this host's address on the way to etcd: one that peers can reach too.
    """

    def __init__(self, gateway: Gateway, timeout: Timeout) -> None:
        super().__init__(timeout)
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._run: EtcdRun
        self._ledger: ChangeLedger
        self._keys = b""
        self._calls: set[WaitingCall] = set()
        self._tasks = Tasks()
        self._watches: dict[Watch, asyncio.Task[None]] = {}
        self._leases: dict[str, _Lease] = {}
        self._closed: AiodistError | None = None
        self._do: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            name: getattr(self, f"_{name}") for name, method in METHODS.items() if method.answer is not None
        }

    @classmethod
    async def connect(
        cls, url: str, job: str, timeout: Timeout = None, *, environ: Mapping[str, str] | None = None
    ) -> EtcdStore:
        """Join the job's run in etcd, or begin one; trying again until `timeout`.

        Args:
            url: 'etcd://host:port', with further members after commas; 'etcds://' for TLS.
            job: what keeps jobs apart.
            timeout: seconds for reaching etcd, and the default of every call afterwards.
            environ: for AIODIST_ETCD_USER and _PASSWORD, _CA, _CERT, _KEY; the process's where None.

        Raises:
            UsageError: the URL or a file that a variable names is none.
            BackendUnavailable: aiohttp is not installed.
            RendezvousTimeout: no member answered in time; says what the network said.
            AuthenticationError: etcd refused this user, or its certificate was refused.
        """
        environ = os.environ if environ is None else environ
        where = place(url, environ)
        if where.tells_password and environ.get("RANK", "0") == "0":
            _log.warning(
                "AIODIST_ETCD_PASSWORD goes to etcd at %s in clear, and everybody on the "
                "network can read it: use etcds://",
                where,
            )
        gateway = Gateway(where)
        try:
            self = cls(gateway, timeout)
            deadline = self._loop.time() + self.timeout
            self._run = await EtcdRun.join(gateway, job, deadline, self._lost)
            self._run.on_replaced = lambda: self.on_replaced()
            self._ledger = ChangeLedger(self._run)
            self._keys = self._run.base + b"key/"
            self.instance = hashlib.blake2b(self._run.base, digest_size=16).digest()
        except BaseException:
            await gateway.aclose()
            raise
        try:
            self.address = await gateway.local_address()
        except BaseException:
            await self.aclose()
            raise
        return self

    # Calls.

    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        call = WaitingCall(self._loop, self.timeout, 0.0)
        if timeout is not None:
            call = WaitingCall(self._loop, timeout, GRACE_SECONDS)
        try:
            check_args(method, args if timeout is None else [*args, timeout])
            check_use(self._loop, self._closed)
            async with call.scope:
                self._calls.add(call)
                try:
                    return await self._do[method](call, *args)
                finally:
                    self._calls.discard(call)
                    call.arrived()
                    call.ended.set_result(None)
        except rules.RefusedError as refused:
            raise error_of(refused.kind, refused.message, refused.hint, refused.missing) from None
        except NoLease:
            raise lost_error() from None
        except TimeoutError:
            if not call.scope.expired() or self._closed is None:
                raise
            raise again(self._closed) from None

    def _key(self, key: str) -> bytes:
        return self._keys + _encoded(key)

    # Changes.

    async def _set(self, call: WaitingCall, key: str, value: bytes, ttl: float | None) -> None:
        lease = self._leases.pop(key, None)
        if lease is not None and lease.timer is not None:
            lease.timer.cancel()
        if ttl is None:
            await self._ledger.change([words.put(self._key(key), value, self._run.lease)], call.deadline)
            return
        seconds = math.ceil(ttl) + 1  # it must not end before this process ends it
        while True:
            if (
                lease is None
                or lease.seconds != seconds
                or not await self._run.renew(lease.id, call.deadline)
            ):
                lease = _Lease(await self._run.grant(seconds, call.deadline), seconds)
            try:
                await self._ledger.change([words.put(self._key(key), value, lease.id)], call.deadline)
                break
            except NoLease:  # etcd was away for longer than it lasts
                lease = None
        lease.timer = self._loop.call_later(ttl, self._end_lease, key, lease)
        self._leases[key] = lease

    def _end_lease(self, key: str, lease: _Lease) -> None:
        """End the lease of a key of this process when its time is up; etcd alone counts in whole seconds."""
        if self._leases.get(key) is lease:
            del self._leases[key]
        self._start(self._run.revoke(lease.id, self._loop.time() + lease.seconds))

    async def _multi_set(self, call: WaitingCall, keys: list[str], values: list[bytes]) -> None:
        rules.check_pairs(keys, values)
        new = {self._key(key): value for key, value in zip(keys, values, strict=True)}
        lease = self._run.lease
        await self._ledger.change([words.put(key, value, lease) for key, value in new.items()], call.deadline)

    async def _swap(self, call: WaitingCall, key: str, decide: Callable[[bytes | None], Decision[T]]) -> T:
        return await self._ledger.swap(self._key(key), decide, call.deadline)

    async def _add(self, call: WaitingCall, key: str, amount: int) -> int:
        def decide(held: bytes | None) -> Decision[int]:
            total = rules.added(key, held, amount)
            return Decision(total, b"%d" % total)

        return await self._swap(call, key, decide)

    async def _append(self, call: WaitingCall, key: str, value: bytes) -> None:
        await self._swap(call, key, lambda held: Decision(None, (held or b"") + value))

    async def _compare_set(self, call: WaitingCall, key: str, expected: bytes, desired: bytes) -> bytes:
        def decide(held: bytes | None) -> Decision[bytes]:
            sets, answer = rules.compared(held, expected, desired)
            return Decision(answer, desired, leave=not sets)

        return await self._swap(call, key, decide)

    async def _claim(self, call: WaitingCall, key: str, value: bytes) -> bytes:
        # It stays as long as the run: whoever died here is found dead by who comes after (`alive`).
        return await self._swap(
            call, key, lambda held: Decision(held, leave=True) if held else Decision(value, value)
        )

    async def _delete_key(self, call: WaitingCall, key: str) -> bool:
        return await self._swap(
            call, key, lambda held: Decision(False, leave=True) if held is None else Decision(True, None)
        )

    async def _fence(self, call: WaitingCall) -> int:
        # The mark alone is the change: revisions of etcd only grow, over all runs and jobs.
        return await self._ledger.change([], call.deadline)

    # Leases of many keys. Their tokens are their ids in etcd, so every process can use them.

    async def _lease_grant(self, call: WaitingCall, ttl: float) -> int:
        rules.check_ttl(ttl)
        token = await self._fence(call)
        return await self._run.grant(math.ceil(ttl), call.deadline, token)

    async def _lease_renew(self, call: WaitingCall, token: int) -> bool:
        return await self._run.renew(token, call.deadline)

    async def _lease_set(self, call: WaitingCall, token: int, key: str, value: bytes) -> None:
        try:
            await self._ledger.change([words.put(self._key(key), value, token)], call.deadline)
        except NoLease:
            raise rules.lease_ended(token) from None

    async def _lease_claim(self, call: WaitingCall, token: int, key: str, value: bytes) -> bytes:
        def decide(held: bytes | None) -> Decision[bytes]:
            return Decision(value, value) if held is None else Decision(held, leave=True)

        try:
            return await self._ledger.swap(self._key(key), decide, call.deadline, token)
        except NoLease:
            raise rules.lease_ended(token) from None

    async def _lease_end(self, call: WaitingCall, token: int) -> bool:
        return await self._run.revoke(token, call.deadline)

    # Reads.

    async def _check(self, call: WaitingCall, keys: list[str]) -> bool:
        # What this process asked before has arrived by then, as where all requests take one connection.
        before = [other.has_arrived for other in self._calls if other is not call]
        if before:
            await asyncio.wait(before, timeout=call.timeout)
        return None not in await self._read(call, keys)

    async def _read(self, call: WaitingCall, keys: list[str]) -> list[Item | None]:
        """Read what keys hold, all at one time."""
        distinct = dict.fromkeys(keys)
        reads = [words.get(self._key(key)) for key in distinct]
        found = await self._run.read(*reads, deadline=call.deadline)
        held = dict(zip(distinct, (part.item for part in found), strict=True))
        return [held[key] for key in keys]

    async def _list_keys(self, call: WaitingCall, prefix: str) -> list[str]:
        names = words.get_all(self._key(prefix), names_only=True)
        [found] = await self._run.read(names, deadline=call.deadline)
        cut = len(self._keys)
        return sorted(item.key[cut:].decode(errors="replace") for item in found.items)

    async def _num_keys(self, call: WaitingCall, prefix: str) -> int:
        [found] = await self._run.read(words.count_all(self._key(prefix)), deadline=call.deadline)
        return found.count

    async def _wait(self, call: WaitingCall, keys: list[str]) -> None:
        await self._multi_get(call, keys)

    async def _multi_get(self, call: WaitingCall, keys: list[str]) -> list[bytes]:
        items: list[Item | None] = []

        async def read() -> bytes | None:
            items[:] = await self._read(call, keys)
            return next((self._key(key) for key, item in zip(keys, items, strict=True) if item is None), None)

        if not await read_until(read, self._gateway, call):
            absent = [place for place, item in enumerate(items) if item is None]
            raise rules.nobody_set(keys, absent, call.timeout)
        return [item.value for item in items if item is not None]

    async def _gather(self, call: WaitingCall, name: str, rank: int, size: int, card: bytes) -> list[bytes]:
        here = Gather(
            self._gateway, self._run, self._ledger, call, name=name, size=size, rank=rank, value=card
        )
        return await here.meet(self._tidy_later)

    def watch(self, prefix: str = "") -> Watch:
        check_use(self._loop, self._closed)

        def on_close() -> None:
            if (task := self._watches.pop(watch, None)) is not None:
                task.cancel()

        watch = Watch(on_close)
        start = self._key(check_key(prefix))
        task = self._start(report(watch, self._gateway, self._run, start, len(self._keys)))
        self._watches[watch] = task
        return watch

    # In the background, and the end.

    def _start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        return self._tasks.start(_suppressed(work))

    def _tidy_later(self, seconds: float, prefix: bytes) -> None:
        async def tidy() -> None:
            await asyncio.sleep(seconds)
            deadline = self._loop.time() + self.timeout
            await self._run.txn([], [words.delete_all(prefix)], deadline=deadline)

        self._start(tidy())

    def _lost(self, error: AiodistError) -> None:
        """Tell everything that waits that the store is over."""
        self._closed = self._closed or error
        for call in self._calls:
            call.scope.reschedule(self._loop.time())
        watches, self._watches = self._watches, {}
        for watch, task in watches.items():
            task.cancel()
            watch.end(again(error))

    async def aclose(self) -> None:
        if self._closed is None or self._gateway.is_open:
            self._lost(closed_error())
            for lease in self._leases.values():
                if lease.timer is not None:
                    lease.timer.cancel()
            self._leases.clear()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            ends = [*tasks, *(call.ended for call in self._calls)]
            if ends:
                await asyncio.wait(ends, timeout=GOODBYE_SECONDS)
            await self._run.aclose(GOODBYE_SECONDS)
            await self._gateway.aclose()


async def _suppressed(work: Coroutine[Any, Any, object]) -> None:
    with contextlib.suppress(AiodistError, NoLease):
        await work


def _encoded(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the key {key[:40]!r} cannot be written as UTF-8") from None
