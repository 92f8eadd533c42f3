"""etcd's members die and come back, and jobs of real processes meet there."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aiodist.rendezvous import WatchEvent
from aiodist.rendezvous.etcd import gateway
from aiodist.rendezvous.etcd.store import EtcdStore
from aiodist.testing.outcome import check
from aiodist.testing.ranks import launch
from tests.levels import COSTLY
from tests.rendezvous.meeting import rendezvous

CLIENTS = 3


@pytest.fixture
def job() -> str:
    return f"test-{secrets.token_hex(4)}"


class Load:
    """Clients that change a store as fast as they can, and remember what was acknowledged."""

    def __init__(self, stores: list[EtcdStore]) -> None:
        self._stores = stores
        self.sums: list[int] = []
        self.set: dict[str, bytes] = {}
        self.appended: list[bytes] = []
        self.won: list[bytes] = []
        self.is_over = False
        self._count = 0
        self._moved = asyncio.Condition()

    async def run(self) -> None:
        await asyncio.gather(*(self._client(number, store) for number, store in enumerate(self._stores)))

    async def _client(self, number: int, store: EtcdStore) -> None:
        turn = 0
        while not self.is_over:
            turn += 1
            name = b"<%d.%d>" % (number, turn)
            self.sums.append(await store.add("sum", 1))
            key = f"key/{number}/{turn % 7}"
            await store.set(key, name)
            self.set[key] = name
            await store.append("log", name)
            self.appended.append(name)
            if await store.compare_set(f"epoch/{turn}", b"", name) == name:
                self.won.append(name)
            async with self._moved:
                self._count += 1
                self._moved.notify_all()

    async def rounds(self, more: int) -> None:
        """Return when so many more rounds have been acknowledged."""
        async with self._moved:
            goal = self._count + more
            await self._moved.wait_for(lambda: self._count >= goal)

    async def check(self, store: EtcdStore) -> None:
        """What was acknowledged is there; what changes things once has done so once."""
        assert sorted(self.sums) == list(range(1, len(self.sums) + 1))
        assert await store.get("sum") == b"%d" % len(self.sums)
        for key, value in self.set.items():
            assert await store.get(key) == value
        log = await store.get("log")
        assert len(log) == sum(map(len, self.appended))
        for name in self.appended:
            assert log.count(name) == 1
        epochs = await store.list_keys("epoch/")
        assert sorted(await store.multi_get(epochs)) == sorted(self.won)


async def under_load(etcd: Any, job: str, faults: Callable[[Load], Any]) -> None:
    """Have faults happen under load, and check what etcd holds then."""
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(await EtcdStore.connect(etcd.url, job, 60))
            for _ in range(CLIENTS)
        ]
        load = Load(stores)
        watch = stack.push_async_exit(stores[0].watch("last"))
        running = asyncio.ensure_future(load.run())
        meeting = asyncio.gather(*(stores[rank].gather("g", 3, rank, b"%d" % rank) for rank in range(2)))
        await load.rounds(20)
        await faults(load)
        load.is_over = True
        await running
        await load.check(stores[-1])
        # What waited through it all goes on.
        assert await stores[2].gather("g", 3, 2, b"2") == [b"0", b"1", b"2"]
        assert await meeting == [[b"0", b"1", b"2"]] * 2
        await stores[1].set("last", b"v")
        assert await anext(watch) == WatchEvent("last", b"v")


@pytest.mark.slow("an etcd that is killed or stopped, three times under load")
async def test_kill_and_restart_under_load(start_etcd: Callable[..., Any], job: str) -> None:
    etcd = start_etcd()

    async def faults(load: Load) -> None:
        for _ in range(3):
            etcd.kill()
            etcd.start()
            await load.rounds(20)

    await under_load(etcd, job, faults)


@pytest.mark.slow("an etcd that is killed or stopped, three times under load")
async def test_a_frozen_etcd_gets_what_was_given_up_too(
    start_etcd: Callable[..., Any], job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Attempts that were given up are all in its sockets when it wakes up, beside those that came after them.
    monkeypatch.setattr(gateway, "ATTEMPT_SECONDS", 0.5)
    given_up = asyncio.Event()
    turn = gateway.Gateway._turn
    count = 0

    def counting(self: gateway.Gateway, at: int) -> None:
        nonlocal count
        count += 1
        if count % 10 == 0:
            given_up.set()
        turn(self, at)

    etcd = start_etcd()

    async def faults(load: Load) -> None:
        monkeypatch.setattr(gateway.Gateway, "_turn", counting)
        for _ in range(3):
            etcd.freeze()
            given_up.clear()
            await given_up.wait()
            etcd.thaw()
            await load.rounds(10)

    await under_load(etcd, job, faults)


@pytest.mark.slow("an etcd of three, twice without its leader")
async def test_the_leader_dies_under_load(start_etcd: Callable[..., Any], job: str) -> None:
    etcd = start_etcd(size=3)

    async def faults(load: Load) -> None:
        leader = await etcd.leader()
        etcd.kill(leader)
        await load.rounds(20)
        etcd.start(leader)
        await load.rounds(20)
        etcd.kill(await etcd.leader())
        await load.rounds(20)

    await under_load(etcd, job, faults)


async def test_init_methods(etcd: Any, job: str) -> None:
    async def meet(rank: int, url: str, environ: dict[str, str], given: int = -1, size: int = -1) -> int:
        environ = {**environ, "AIODIST_JOB": job}
        async with await rendezvous(url, given, size, 20, environ=environ, secret=b"s") as meeting:
            answers = await meeting.store.gather("g", 2, meeting.rank, b"%d" % meeting.rank)
            assert answers == [b"0", b"1"]
            assert (meeting.address, meeting.server, meeting.world_size) == ("127.0.0.1", None, 2)
            assert meeting.rank == rank
            return rank

    for ways in (
        [meet(rank, etcd.url, {}, rank, 2) for rank in range(2)],
        [meet(rank, f"{etcd.url}?rank={rank}&world_size=2", {}) for rank in range(2)],
        [
            meet(rank, "env://", {"RANK": str(rank), "WORLD_SIZE": "2", "AIODIST_STORE": etcd.url})
            for rank in range(2)
        ],
    ):
        await asyncio.gather(*ways)


async def four_ranks(pg: Any) -> None:
    """Runs on every rank of the next test."""
    import numpy as np

    tensor = np.arange(100.0) * (pg.rank + 1)
    await pg.all_reduce(tensor)
    assert np.array_equal(tensor, np.arange(100.0) * 10)


@pytest.mark.slow("more of the same")  # this file is also a script, which finds no `tests`
def test_a_job_of_four_processes(etcd: Any, job: str) -> None:
    arguments = ["-m", "aiodist.testing.worker", __file__, "four_ranks", "{}"]
    for _ in range(2):  # the second job finds nothing of the first
        env = {"AIODIST_STORE": etcd.url, "AIODIST_JOB": job}
        check(asyncio.run(launch(arguments, 4, timeout=120, env=env)), {})


async def test_the_page_of_the_docs(etcd: Any, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    import aiodist as dist

    monkeypatch.setenv("AIODIST_JOB", job)
    monkeypatch.setenv("AIODIST_SECRET", "hush")
    page = Path(__file__).parents[3] / "docs" / "etcd.md"
    names: dict[str, Any] = {"dist": dist, "np": np}
    for code in re.findall(r"^```python elsewhere\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(code, str(page), "exec"), names)
    await names["meet"](etcd.url, 0, 1)
    url = f"{etcd.url}/{job}"  # its job has a name of its own
    assert [await names["count"](url) for _ in range(2)] == [1, 1]  # a run each


@pytest.mark.slow(COSTLY)
def test_a_job_that_died_is_started_again(etcd: Any, job: str) -> None:
    program = (
        "import asyncio, os, sys\n"
        "import aiodist as dist\n"
        "async def main():\n"
        "    rank, url = int(os.environ['RANK']), sys.argv[1]\n"
        "    pg = await dist.init_process_group(init_method=url, rank=rank, world_size=2, timeout=60)\n"
        "    await pg.barrier()\n"
        "    if sys.argv[2] == 'die':\n"
        "        os.kill(os.getpid(), 9)\n"
        "    await pg.aclose()\n"
        "dist.run(main())\n"
    )
    env = {"AIODIST_JOB": job, "AIODIST_STORE": ""}
    for end, code in (("die", -9), ("close", 0)):
        outcomes = asyncio.run(launch(["-c", program, etcd.url, end], 2, timeout=120, env=env))
        check(outcomes, {0: code, 1: code})
