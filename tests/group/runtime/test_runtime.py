"""From a process to a member of a job, and back: init, close, init again, and `run`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.runtime.joining import _standing_store
from aiodist.group.runtime.late_worker import unless
from aiodist.group.runtime.member import ELASTIC
from aiodist.net.local_socket import connect_to_store
from aiodist.rendezvous import HashStore, Invitation, PrefixStore, Store, StoreServer, TcpStore
from aiodist.testing import spmd
from aiodist.transport import SocketEndpoint
from tests.helpers import core_of
from tests.levels import COSTLY


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a launcher's."""
    for name in list(os.environ):
        if name.startswith(("AIODIST_", "MASTER_", "TORCHELASTIC_")) or name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
        ):
            monkeypatch.delenv(name)


async def init(store: Store, **more: Any) -> ProcessGroup:
    """A world of one."""
    return await dist.init_process_group(store=store, rank=0, world_size=1, **more)


async def test_world_of_one_over_a_users_store_and_again() -> None:
    store = HashStore()
    for _ in range(2):
        assert not dist.is_initialized()
        group = await init(store, timeout=7)
        assert dist.is_initialized()
        assert (group.rank, group.size, group.name, group.timeout) == (0, 1, "world", 7)
        tensor = np.arange(3.0)
        await dist.all_reduce(tensor)
        assert list(tensor) == [0, 1, 2]
        await group.aclose()
        assert not dist.is_initialized()
        with pytest.raises(dist.UsageError, match="does not exist on this loop"):
            dist.barrier()
    assert await store.num_keys() >= 0  # it is the user's, and open
    await store.aclose()


async def test_alone_by_the_environment() -> None:
    async with await dist.init_process_group() as group:
        assert (group.rank, group.size) == (0, 1)
    assert not dist.is_initialized()


async def test_second_init_is_refused_and_the_first_group_works_on() -> None:
    store = HashStore()
    group = await init(store)
    with pytest.raises(dist.UsageError, match="has a default process group already"):
        await init(store)
    await group.barrier()
    await dist.destroy_process_group()
    with pytest.raises(dist.UsageError, match="init_process_group"):
        await dist.destroy_process_group()
    await store.aclose()


async def test_two_inits_at_once_on_one_loop_are_told_apart() -> None:
    store = HashStore()
    first, second = await asyncio.gather(init(store), init(store), return_exceptions=True)
    assert isinstance(second, dist.UsageError)
    assert "under way on this loop" in str(second)
    assert isinstance(first, dist.ProcessGroup)
    await first.aclose()
    await store.aclose()


async def test_destroy_names_a_group_too() -> None:
    store = HashStore()
    group = await init(store)
    child = await group.new_group([0])
    assert child is not None
    await dist.destroy_process_group(child)
    with pytest.raises(dist.GroupClosed):
        child.barrier()
    await group.barrier()
    await dist.destroy_process_group(group)
    await store.aclose()


@pytest.mark.parametrize("known", [{"WORLD_SIZE": "3"}, {}, {"AIODIST_NEWCOMER": "1"}])
async def test_join_without_a_rank_says_that_no_store_answers(
    known: dict[str, str], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing to begin a job with, so it waits for who does."""
    for name, value in {**known, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        dist.RendezvousTimeout,
        match=rf"cannot reach the store at 127.0.0.1:{port} .*this process has no rank",
    ):
        await dist.join(timeout=0.3)


async def test_join_without_a_rank_waits_for_a_store_that_is_away(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = asyncio.Event()

    async def dial(host: str, port: int) -> Any:
        try:
            return await connect_to_store(host, port)
        except OSError:
            refused.set()
            raise

    monkeypatch.setattr("aiodist.rendezvous.client.connect_to_store", dial)
    environ = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "AIODIST_SECRET": "s",
        "AIODIST_JOB": "j",
    }
    asked = Invitation("env://", -1, -1, 100.0, environ, b"s")
    looking = asyncio.create_task(_standing_store(asked, begins=False))
    await refused.wait()
    async with await StoreServer.start("127.0.0.1", port, "j", b"s"):
        store = await looking
        assert isinstance(store, TcpStore)
        await store.aclose()


@pytest.mark.parametrize("name", [None, "host", "gloo", "cpu:gloo", "cpu:host"])
async def test_names_of_the_host_backend(name: str | None) -> None:
    store = HashStore()
    async with await init(store, backend=name):
        assert dist.get_backend() == "host"
    await store.aclose()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"backend": "smoke"}, dist.UsageError, "backend 'smoke' is not known; there are .*host, "),
        ({"backend": "cpu:smoke"}, dist.UsageError, "backend 'smoke' is not known"),
        ({"backend": "host,nccl:cuda"}, dist.UsageError, "cannot be read"),
        ({"timeout": 0}, dist.UsageError, "timeout must be a positive number"),
        ({"init_method": "env://"}, dist.UsageError, "init_method or store, not both"),
        ({"rank": 1}, dist.UsageError, "needs rank and world_size, got rank=1, world_size=1"),
        ({"rank": -1}, dist.UsageError, "needs rank and world_size"),
    ],
)
async def test_refusals_leave_nothing(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    store = HashStore()
    with pytest.raises(kind, match=words):
        await dist.init_process_group(**{"store": store, "rank": 0, "world_size": 1, **arguments})
    assert not dist.is_initialized()
    async with await init(store):
        pass
    await store.aclose()


@pytest.mark.parametrize("backend", ["nccl", "cpu:host,cuda:nccl", "cuda:host"])
@pytest.mark.parametrize("cupy", [True, False])
async def test_device_backend_that_cannot_be_names_the_one_thing(
    backend: str, cupy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "device tensors need CuPy, which is not installed"
    if cupy:
        pytest.importorskip("cupy", reason="needs CuPy to see that nothing else is missing")
        words = "no NVIDIA driver|no CUDA device|the NVIDIA driver is for|NCCL"
        if dist.is_backend_available(backend):
            pytest.skip("nothing is missing here")
    else:
        monkeypatch.setitem(sys.modules, "cupy", None)
    store = HashStore()
    with pytest.raises(dist.BackendUnavailable, match=words) as caught:
        await init(store, backend=backend)
    assert caught.value.hint
    assert not dist.is_initialized()
    await store.aclose()


async def test_windows_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dist.is_available()
    monkeypatch.setattr(sys, "platform", "win32")
    assert not dist.is_available()
    with pytest.raises(dist.BackendUnavailable, match="does not run on Windows"):
        await dist.init_process_group()


async def test_init_that_fails_half_way_gives_its_rank_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(**_: Any) -> Any:
        raise dist.RendezvousError("no such address")

    store = HashStore()
    with monkeypatch.context() as patched:
        patched.setattr(SocketEndpoint, "open", refuse)
        with pytest.raises(dist.RendezvousError, match="no such address"):
            await init(store)
    assert not dist.is_initialized()
    # Another process may have the rank now.
    claimed = {key: await store.get(key) for key in await store.list_keys()}
    assert not any(claimed.values())
    async with await init(store):
        pass
    await store.aclose()


async def test_init_names_who_is_missing_and_leaves_nothing() -> None:
    store = HashStore()
    with pytest.raises(dist.RendezvousTimeout) as caught:
        await dist.init_process_group(store=store, rank=1, world_size=3, timeout=0.5)
    assert set(caught.value.missing) == {0, 2}
    assert not dist.is_initialized()
    async with await init(store):
        pass
    await store.aclose()


async def test_cancelled_init_leaves_nothing() -> None:
    store = HashStore()
    task = asyncio.create_task(dist.init_process_group(store=store, rank=0, world_size=2))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not dist.is_initialized()
    await store.aclose()


async def test_peers_are_told_the_address_of_the_connection_to_a_users_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the store is a part of one; AIODIST_HOST overrides it."""
    hosts: list[str] = []
    opened = SocketEndpoint.open

    async def note(**arguments: Any) -> Any:
        hosts.append(arguments["host"])
        return await opened(**arguments)

    monkeypatch.setattr(SocketEndpoint, "open", note)
    server = await dist.StoreServer.start("127.0.0.3", 0, "aiodist", b"")
    store = await TcpStore.connect("127.0.0.3", server.port, "aiodist", b"")
    store.address = "127.0.0.2"  # as if the connection had come from there
    for given in (store, PrefixStore("mine", store)):
        async with await init(given):
            pass
    monkeypatch.setenv("AIODIST_HOST", "127.0.0.4")
    async with await init(store):
        pass
    assert hosts == ["127.0.0.2", "127.0.0.2", "127.0.0.4"]
    await store.aclose()
    await server.aclose()


def test_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dist.UsageError, match="LOCAL_RANK is not set"):
        dist.get_node_local_rank()
    assert dist.get_node_local_rank(fallback_rank=3) == 3
    with monkeypatch.context() as patch:
        patch.setenv("MASTER_ADDR", "10.0.0.1")
        assert dist.get_node_local_rank(3) == 3
        for name, value in {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"}.items():
            patch.setenv(name, value)
        assert dist.get_node_local_rank(3) == 1
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert dist.get_node_local_rank() == dist.get_node_local_rank(5) == 2
    monkeypatch.setenv("LOCAL_RANK", "two")
    with pytest.raises(dist.UsageError, match="LOCAL_RANK='two' is not a number"):
        dist.get_node_local_rank()


def test_run_closes_what_is_open() -> None:
    groups: list[ProcessGroup] = []

    async def main() -> str:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        groups.append(await dist.init_process_group())
        groups[0].all_reduce(np.zeros(3), async_op=True)
        return "result"

    assert dist.run(main()) == "result"
    assert "closed" in repr(groups[0])


def test_run_aborts_what_is_open_when_it_fails() -> None:
    groups: list[ProcessGroup] = []

    async def main() -> None:
        groups.append(await dist.init_process_group())
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        dist.run(main())
    error = core_of(groups[0]).error
    assert isinstance(error, dist.GroupAborted)
    assert error.reason == "KeyError: 'mine'"
    assert "closed" in repr(groups[0])


def test_run_without_a_group() -> None:
    async def main() -> int:
        return 3

    assert dist.run(main()) == dist.run(main(), debug=True) == 3


@pytest.mark.filterwarnings("error")  # a coroutine that is refused is closed
def test_run_of_what_cannot_run_says_what_to_write() -> None:
    async def main() -> None:
        with pytest.raises(dist.UsageError, match=r"an event loop runs already.*`await main"):
            dist.run(other())

    async def other() -> None:
        raise AssertionError

    dist.run(main())
    with pytest.raises(dist.UsageError, match=r"got function\. Call it: dist.run\(other\(\)\)"):
        dist.run(other)  # type: ignore[arg-type]
    with pytest.raises(dist.UsageError, match="needs a coroutine, got int"):
        dist.run(3)  # type: ignore[arg-type]


def test_run_after_the_group_was_closed() -> None:
    async def main() -> None:
        async with await dist.init_process_group():
            pass
        raise SystemExit(4)

    with pytest.raises(SystemExit):
        dist.run(main())


# ── the end, among several ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(COSTLY)
@spmd(world_size=3)
async def test_cancelled_close_tells_the_others(pg: ProcessGroup) -> None:
    if pg.rank == 1:
        for _ in range(2):
            await pg.recv(np.zeros(1))  # the others are through init_process_group
        pg.all_reduce(np.zeros(3), async_op=True)
        task = asyncio.create_task(pg.aclose())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not dist.is_initialized()
        await pg.aclose()  # nothing more to do
        return
    await pg.send(np.zeros(1), 1)
    with pytest.raises(dist.GroupAborted, match="rank 1 aborted the group: closing the group was cancelled"):
        await pg.recv(np.zeros(1), 1)


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, exits={1: -signal.SIGKILL})
async def test_peer_that_dies_while_this_rank_closes(pg: ProcessGroup) -> None:
    tensor = np.zeros(3)
    if pg.rank == 1:
        await pg.recv(np.zeros(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    work = pg.all_reduce(tensor, async_op=True)
    await pg.send(np.zeros(1), 1)
    with pytest.raises(dist.PeerLost, match="nobody awaited"):
        await pg.aclose()
    assert isinstance(work.exception(), dist.PeerLost)  # not the operation's timeout


@pytest.mark.slow(COSTLY)
@spmd(world_size=2)
async def test_abort_ends_a_close_that_waits(pg: ProcessGroup) -> None:
    if pg.rank == 1:
        with pytest.raises(dist.GroupAborted, match="changed my mind"):
            await pg.recv(np.zeros(1), 0)
        return
    work = pg.all_reduce(np.zeros(3), async_op=True)
    closing = asyncio.create_task(pg.aclose())
    await asyncio.sleep(0)
    pg.abort("changed my mind")
    pg.abort("twice")
    await closing
    error = work.exception()
    assert isinstance(error, dist.GroupAborted)
    assert error.reason == "changed my mind"
    pg.abort("thrice")  # closed: nothing to break


HOST_DIES = """
import asyncio, os, signal
import numpy as np
import aiodist as dist
from aiodist.rendezvous import client

client.RECONNECT_SECONDS = client.REFUSED_SECONDS = 1e6  # who waits for the store does not end

async def main():
    pg = await dist.init_process_group()
    try:
        if pg.rank == 0:
            await pg.recv(np.zeros(1), 1)
            os.kill(os.getpid(), signal.SIGKILL)
        await pg.send(np.zeros(1), 0)
        await pg.all_reduce(np.zeros(3))
    except dist.PeerLost as error:
        await pg.aclose()
        print("lost", error.ranks, "closed")

dist.run(main())
"""


@pytest.mark.slow(COSTLY)
async def test_survivor_closes_soon_after_the_host_of_the_store_died() -> None:
    from tests.ports import free_port  # not above: ranks import this file, wherever they are

    port = free_port()
    environ = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    first, second = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            HOST_DIES,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**environ, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        async with asyncio.timeout(200):
            await first.communicate()
            output, _ = await second.communicate()
    finally:
        for process in (first, second):
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert first.returncode == -signal.SIGKILL
    assert output.decode() == "lost (0,) closed\n"


async def test_work_goes_on_unless_something_ends_it() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert await unless(work(), asyncio.sleep(0, "over")) == (None, "over")
    assert cancelled.is_set()
    assert await unless(asyncio.sleep(0, "done"), work()) == ("done", None)

    async def lost() -> None:
        raise dist.RendezvousError("lost", hint="")

    assert await unless(asyncio.sleep(0.01, "done"), lost()) == ("done", None)
    with pytest.raises(dist.RendezvousError, match="lost"):
        await unless(lost(), work())


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_work_that_is_done_as_the_wait_for_it_is_cancelled_is_taken_back(before: int) -> None:
    """A turn of the loop lies between the end of the work and that of the wait."""
    loop = asyncio.get_running_loop()
    undone: list[tuple[str, type[BaseException]]] = []

    async def work() -> str:
        for _ in range(before):
            await asyncio.sleep(0)
        loop.call_soon(waiting.cancel)
        return "done"

    async def undo(result: str, error: BaseException) -> None:
        await asyncio.sleep(0)
        undone.append((result, type(error)))

    waiting = loop.create_task(unless(work(), asyncio.Event().wait(), undo))
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert undone == [("done", asyncio.CancelledError)]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_nothing_is_taken_back_of_work_that_is_not_done() -> None:
    async def undo(result: str, error: BaseException) -> None:
        raise AssertionError(result)

    waiting = asyncio.ensure_future(unless(asyncio.sleep(60, "done"), asyncio.Event().wait(), undo))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


class Unmarked(HashStore):
    """A store that never says that the job has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def set(self, key: str, value: Any, *, ttl: float | None = None) -> None:
        if key == ELASTIC:
            self.asked.set()
            await asyncio.Event().wait()
        await super().set(key, value, ttl=ttl)


async def test_a_world_that_a_cancelled_join_has_formed_is_left() -> None:
    async with Unmarked() as store:
        before = asyncio.all_tasks()
        joining = asyncio.ensure_future(dist.join(store=store, rank=0, world_size=1))
        await store.asked.wait()
        joining.cancel()
        await asyncio.wait([joining])
        assert joining.cancelled()
        assert asyncio.all_tasks() <= before
        group = await init(store)  # the rank is free again
        await group.aclose()


JOINS = """
import asyncio, sys
import numpy as np
import aiodist as dist
from aiodist.group.runtime import member

async def stays():
    async with dist.join() as pg:
        print("joined", flush=True)
        pg = await pg.grow()
        try:
            await pg.recv(np.zeros(1), 1)
        except dist.GroupAborted as error:
            print("told of rank", error.rank, flush=True)

async def is_cancelled():
    join_running = member.join_running

    async def cancelled(*arguments):
        group = await join_running(*arguments)
        asyncio.get_running_loop().call_soon(joining.cancel)
        return group

    member.join_running = cancelled
    joining = asyncio.ensure_future(dist.join())
    await asyncio.wait([joining])
    print("cancelled" if joining.cancelled() else joining, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # it lives

dist.run(stays() if sys.argv[1] == "stays" else is_cancelled())
"""


@pytest.mark.slow(COSTLY)
async def test_a_member_does_not_wait_for_a_process_whose_join_was_cancelled_as_it_was_admitted() -> None:
    server = await StoreServer.start("127.0.0.1", 0, "job", b"s" * 32)
    places = {"AIODIST_STORE": f"127.0.0.1:{server.port}", "AIODIST_JOB": "job", "AIODIST_SECRET": "s" * 32}
    processes: list[asyncio.subprocess.Process] = []
    try:
        for what, more in (("stays", {"RANK": "0", "WORLD_SIZE": "1"}), ("is cancelled", {})):
            processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", JOINS, what),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={**os.environ, **places, **more},
                )
            )
            out = processes[-1].stdout
            assert out is not None
            assert await out.readline() == (b"joined\n" if what == "stays" else b"cancelled\n")
        async with asyncio.timeout(40):
            output, _ = await processes[0].communicate()
        assert output == b"told of rank 1\n"
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        await server.aclose()
