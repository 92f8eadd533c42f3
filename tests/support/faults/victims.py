"""Rank processes that are there to be killed, stopped and cut off, over and over.

    async def endless(stage: Stage, count: int) -> str:      # runs in every process
        async with await stage.join() as pg:
            stage.say("running")
            try:
                while True:
                    await pg.all_reduce(np.ones(count))
            except dist.PeerLost as error:
                return str(error)

    async with Victims() as victims:                         # in the test, or the benchmark
        async with victims.round(endless, 4, count=1000) as round:
            await round.all_say("running")
            round.kill(2)
            outcomes = await round.outcomes([0, 1, 3])       # None: it hangs

Processes are kept between rounds, and the dead replaced by a fork of a process that has imported everything:
a round of four costs some tens of milliseconds, so thousands of deaths can be counted. Linux.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Self

from aiodist.base.environment import tls
from aiodist.rendezvous import StoreServer
from aiodist.testing.forkserver import Forked, ForkRequest, ForkServer
from aiodist.testing.hosts import Hosts
from tests.support.faults.detour import Detours
from tests.support.faults.process import RankProcess
from tests.support.faults.rank import Stage

Scenario = Callable[..., Awaitable[Any]]

_LOOPBACK = "127.0.0.1"
_LOG = 16_000  # bytes that are shown of what the processes printed


class RoundFailed(AssertionError):
    """The error that a scenario did not come to where it was waited for; says who, and what was printed."""


@dataclass(frozen=True)
class Said:
    """A message of a rank, or that it is gone (`what` is 'died') or through with its function ('ends').

    Attributes:
        rank: of the round.
        what: the word.
        at: nanoseconds on CLOCK_MONOTONIC, which all processes of a machine share.
        facts: what else; for 'ends' it has `value`, the function's result, or `error` and `trace`.
    """

    rank: int
    what: str
    at: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> Any:
        """The result that the function returned."""
        return self.facts.get("value")

    @property
    def error(self) -> str:
        """The error that the function raised, as text; '' if none."""
        return str(self.facts.get("error", ""))


class Victims:
    """A pool of rank processes; use it with `async with`.

    Args:
        transport: AIODIST_TRANSPORT of the ranks: 'auto', 'shm' or 'tcp'.
        env: further environment variables.
        hosts: entered `Hosts` whose namespaces the ranks live in; None: all in this one.
    """

    def __init__(
        self, *, transport: str = "auto", env: Mapping[str, str] | None = None, hosts: Hosts | None = None
    ) -> None:
        self._hosts = hosts
        self._env = {
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "PYTHONUNBUFFERED": "1",
            "AIODIST_TRANSPORT": transport,
            **(env or {}),
        }
        self._servers: dict[int, ForkServer] = {}  # by host
        self._printed: IO[bytes] | None = None
        self._idle: dict[int, list[RankProcess]] = {}
        self._all: set[RankProcess] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._all:  # all before the first is waited for
            process.process.signal(signal.SIGKILL)
        for process in self._all:
            process.close()
        for server in self._servers.values():
            server.close()
        if self._printed is not None:
            self._printed.close()
        self._all, self._servers, self._idle, self._printed = set(), {}, {}, None

    def round(
        self,
        function: Scenario,
        size: int,
        *,
        places: Sequence[int] = (),
        store_on: int | None = None,
        rank_0_has_store: bool = False,
        detours: bool = False,
        seed: int = 0,
        each: Callable[[int], Mapping[str, Any]] | None = None,
        **arguments: Any,
    ) -> Round:
        """A job of `size` ranks, which all run `function(stage, **arguments)`. Enter it with `async with`.

        Args:
            function: at the top of a file, as each process loads it from there.
            places: the host of each rank; () spreads them evenly, in order.
            store_on: where there are hosts: which of them a store lives on for itself, in a process that
                nobody kills; None: rank 0 has it.
            rank_0_has_store: where there are no hosts: rank 0 has the store, not this process.
            detours: whether connections go through a `FaultProxy` for each two ranks (`Round.detours`); with
                transport="tcp".
            seed: of those.
            each: further arguments, by rank.
            arguments: of the function; JSON.
        """
        count = 1 if self._hosts is None else self._hosts.count
        placed = list(places) or [rank * count // size for rank in range(size)]
        through = Detours(size, seed) if detours else None
        each_its = [{**arguments, **(each(rank) if each else {})} for rank in range(size)]
        return Round(self, function, placed, each_its, store_on, rank_0_has_store, through)

    def log(self) -> str:
        """The end of what the processes printed."""
        if self._printed is None:
            return ""
        size = os.fstat(self._printed.fileno()).st_size
        return os.pread(self._printed.fileno(), _LOG, max(0, size - _LOG)).decode(errors="replace")

    # For rounds.

    def _take(self, host: int) -> RankProcess:
        idle = self._idle.setdefault(host, [])
        while idle:
            process = idle.pop()
            if process.process.alive:
                return process
            self._bury(process)
        process = self._fork(host)
        self._all.add(process)
        return process

    def _fork(self, host: int) -> RankProcess:
        """Make a new process, ready for orders."""
        if self._printed is None:
            self._printed = tempfile.TemporaryFile(prefix="aiodist-faults-")  # noqa: SIM115 - see __aexit__
        output = self._printed.fileno()
        if host not in self._servers:
            prefix = [] if self._hosts is None else self._hosts.enter(host)
            self._servers[host] = ForkServer(prefix, self._env, output)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = ForkRequest("tests.support.faults.rank:main", (), None, os.getcwd())
        try:
            with theirs:
                forked = Forked(self._servers[host], request, output, [theirs.fileno()])
        except OSError as error:
            mine.close()
            raise RuntimeError(f"no rank process can be forked ({error})\n{self.log()}") from error
        return RankProcess(forked, mine)

    def _give_back(self, host: int, process: RankProcess) -> None:
        process.heard = lambda message: None
        self._idle.setdefault(host, []).append(process)

    def _bury(self, process: RankProcess) -> None:
        process.close()
        self._all.discard(process)


async def serve_store(stage: Stage, host: str, port: int, job: str, secret: str) -> None:
    """Serve a store, in a process that does nothing else."""
    async with await StoreServer.start(host, port, job, secret.encode(), tls=tls(os.environ)):
        stage.say("serves")
        await asyncio.Event().wait()


class Round:
    """One job on `Victims`. See there.

    Attributes:
        said: all that was said so far, in the order of arrival.
        detours: the proxies, where there are any.
        size: how many ranks it began with.
    """

    def __init__(
        self,
        victims: Victims,
        function: Scenario,
        places: list[int],
        arguments: list[dict[str, Any]],
        store_on: int | None,
        rank_0_has_store: bool,
        detours: Detours | None,
    ) -> None:
        self.size = len(places)
        self.said: list[Said] = []
        self.detours = detours
        self._victims = victims
        self._function = function
        self._places = places
        self._arguments = arguments
        self._store_on = store_on
        self._rank_0_has_store = rank_0_has_store
        self._processes: dict[int, RankProcess] = {}
        self._over: dict[int, Said] = {}
        self._news = asyncio.Event()
        self._server: StoreServer | None = None
        self._keeper: RankProcess | None = None
        self._job = f"faults-{secrets.token_hex(4)}"
        self._secret = secrets.token_hex(32)
        self._meeting: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for rank, process in self._processes.items():
            if rank in self._over and self._over[rank].what == "ends" and not process.unresponsive:
                self._victims._give_back(self._places[rank], process)
            else:
                self._victims._bury(process)
        self._processes = {}
        if self._keeper is not None:
            self._victims._bury(self._keeper)
        if self.detours is not None:
            await self.detours.aclose()
        if self._server is not None:
            await self._server.aclose()

    async def _open(self) -> None:
        await self._make_store()
        if self.detours is not None:
            await self.detours.start()
        for rank in range(self.size):
            self._order(rank, self._function, self._arguments[rank])

    async def _make_store(self) -> None:
        """Make the store where ranks meet, unless rank 0 has it, and the variables that say where it is."""
        hosts = self._victims._hosts
        if hosts is not None:
            self._meeting = dict(hosts.env)
            if self._store_on is not None:
                address, port = hosts.address(self._store_on), int(self._meeting["MASTER_PORT"]) + 1
                self._meeting["AIODIST_STORE"] = f"{address}:{port}"
                await self._serve_store(self._store_on, address, port)
            return
        store = ""
        if self._rank_0_has_store:
            with socket.create_server((_LOOPBACK, 0)) as probe:
                port = probe.getsockname()[1]
        else:
            self._server = await StoreServer.start(
                *(_LOOPBACK, 0, self._job, self._secret.encode()), tls=tls(os.environ)
            )
            port = self._server.port
            store = f"{_LOOPBACK}:{port}"
        self._meeting = {"MASTER_ADDR": _LOOPBACK, "MASTER_PORT": str(port), "AIODIST_STORE": store}

    async def _serve_store(self, host: int, address: str, port: int) -> None:
        """Have a process of its own serve the store."""
        keeper = self._keeper = self._victims._take(host)
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()

        def hear(message: dict[str, Any] | None) -> None:
            if not answer.done():
                answer.set_result(message)

        keeper.heard = hear
        given = {"host": address, "port": port, "job": self._job, "secret": self._secret}
        keeper.order(self._packed(-1, serve_store, given))
        message = await asyncio.wait_for(answer, 20)
        if message is None or message["say"] != "serves":
            raise RoundFailed(f"the store does not serve: {message}\n{self._victims.log()}")

    # ── ranks ────────────────────────────────────────────────────────────────────────────────────────

    def add(self, function: Scenario | None = None, host: int = 0, **arguments: Any) -> int:
        """One more process in this job, such as a newcomer; its number.

        Args:
            function: what it does; None: what all do.
            host: where.
            arguments: of the function.
        """
        rank = len(self._places)
        self._places.append(host)
        self._order(rank, function or self._function, arguments)
        return rank

    def tell(self, word: str, ranks: Iterable[int] | None = None) -> None:
        """Send a text to ranks (all that live), which get it when they ask: `Stage.told`."""
        for rank in list(self._processes) if ranks is None else ranks:
            if rank not in self._over:
                self._processes[rank].order({"word": word})

    @property
    def alive(self) -> list[int]:
        """Ranks whose function has not ended."""
        return [rank for rank in self._processes if rank not in self._over]

    def pid(self, rank: int) -> int:
        """A rank's process id."""
        return self._processes[rank].process.pid

    def kill(self, rank: int) -> int:
        """SIGKILL; nanoseconds on CLOCK_MONOTONIC just before."""
        self._processes[rank].unresponsive = True
        return self._signal(rank, signal.SIGKILL)

    def stop(self, rank: int) -> int:
        """SIGSTOP; the time as in `kill`. Without a `resume` it is killed when the round is left."""
        self._processes[rank].unresponsive = True
        return self._signal(rank, signal.SIGSTOP)

    def resume(self, rank: int) -> int:
        """SIGCONT; the time as in `kill`."""
        self._processes[rank].unresponsive = False
        return self._signal(rank, signal.SIGCONT)

    def _signal(self, rank: int, number: signal.Signals) -> int:
        now = time.monotonic_ns()
        self._processes[rank].process.signal(number)
        return now

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────

    def heard(self, what: str, rank: int | None = None) -> list[Said]:
        """The messages so far of this kind (`what`), by everybody or by one."""
        return [said for said in self.said if said.what == what and rank in (None, said.rank)]

    async def all_say(
        self, what: str, ranks: Iterable[int] | None = None, *, times: int = 1, within: float = 60.0
    ) -> None:
        """Wait until each of the ranks (all that began) has sent a message of one kind.

        Args:
            what: the word.
            ranks: whose.
            times: how often.
            within: seconds.

        Raises:
            RoundFailed: one ended, or time passed, before.
        """
        wanted = set(range(self.size) if ranks is None else ranks)

        def missing() -> set[int]:
            return {rank for rank in wanted if len(self.heard(what, rank)) < times}

        await self.until(lambda: not missing() or missing() & self._over.keys(), within)
        if missing():
            raise RoundFailed(f"ranks {sorted(missing())} never said {what!r}\n{self.report()}")

    async def outcomes(
        self, ranks: Iterable[int] | None = None, *, within: float = 60.0
    ) -> dict[int, Said | None]:
        """The ends of ranks: 'ends' or 'died'; None where one has not within so many seconds: it hangs.

        Those that hang print their stacks, which `report` shows.
        """
        wanted = list(range(len(self._places)) if ranks is None else ranks)
        await self.until(lambda: self._over.keys() >= set(wanted), within)
        late = [rank for rank in wanted if rank not in self._over]
        for rank in late:
            self._processes[rank].process.signal(signal.SIGUSR1)
        if late:
            await asyncio.sleep(1.0)  # for the stacks to be written
        return {rank: self._over.get(rank) for rank in wanted}

    def report(self) -> str:
        """A report on how everybody ended so far, and the end of what was printed."""
        lines = [
            f"rank {rank}: {over.what} {over.error or over.value}\n{over.facts.get('trace', '')}"
            for rank, over in sorted(self._over.items())
        ]
        return "\n".join([*lines, self._victims.log()])

    async def until(self, holds: Callable[[], object], within: float) -> None:
        """Wait until something holds, looked at after every message, or until so many seconds have passed."""
        try:
            async with asyncio.timeout(within):
                while not holds():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass

    def _order(self, rank: int, function: Scenario, arguments: dict[str, Any]) -> None:
        process = self._processes[rank] = self._victims._take(self._places[rank])
        process.heard = lambda message: self._hear(rank, message)
        process.order(self._packed(rank, function, arguments))

    def _hear(self, rank: int, message: dict[str, Any] | None) -> None:
        if message is None:
            said = Said(rank, "died", time.monotonic_ns())
        else:
            said = Said(rank, message.pop("say"), message.pop("at"), message)
        if self.detours is not None and said.what == "listens":
            self.detours.lead_to(rank, (said.facts["host"], said.facts["port"]))
        if said.what in ("died", "ends"):
            self._over.setdefault(rank, said)
        self.said.append(said)
        self._news.set()

    def _packed(self, rank: int, function: Scenario, arguments: dict[str, Any]) -> dict[str, Any]:
        path = inspect.getsourcefile(function)
        assert path is not None
        return {
            "path": path,
            "qualname": function.__qualname__,
            "arguments": arguments,
            "rank": rank,
            "size": self.size,
            "detour": {} if self.detours is None else self.detours.ways(rank),
            "env": {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(self.size),
                "AIODIST_JOB": self._job,
                "AIODIST_SECRET": self._secret,
                **self._meeting,
            },
        }
