"""The store in etcd, against a real one: conformance, lost answers, runs, watches, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from aiodist.base.errors import AuthenticationError, LeaseLost, RendezvousError, RendezvousTimeout, UsageError
from aiodist.rendezvous import PrefixStore, WatchEvent
from aiodist.rendezvous.etcd import gateway, words
from aiodist.rendezvous.etcd import run as etcd_run
from aiodist.rendezvous.etcd.rounds import Gather
from aiodist.rendezvous.etcd.store import EtcdStore
from aiodist.rendezvous.etcd.waiting import WaitingCall
from aiodist.rendezvous.rules import RefusedError
from aiodist.testing.conformance_store import arrived, check_store
from tests.levels import COSTLY, few
from tests.ports import needs_ipv6
from tests.rendezvous.conftest import Clock

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
HOST = "127.0.0.1"


@pytest.fixture
def job() -> str:
    return f"test/{secrets.token_hex(4)}"


async def everything(etcd: Any, job: str) -> int:
    """How many keys of a job etcd holds."""
    start = f"/aiodist/{job.replace('/', '%2F')}/".encode()
    read = {"key": b64encode(start).decode(), "range_end": b64encode(start[:-1] + b"0").decode()}
    return int((await etcd.ask("/v3/kv/range", {**read, "count_only": True})).get("count", 0))


@pytest.mark.parametrize("loop", few(LOOPS, ["uvloop"]))
@pytest.mark.parametrize("prefixed", few([False, True], [True]))
def test_check_store(etcd: Any, job: str, loop: str, prefixed: bool) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            if prefixed:
                inner = await stack.enter_async_context(await EtcdStore.connect(etcd.url, job))

            async def make() -> Any:
                return PrefixStore("a", inner) if prefixed else await EtcdStore.connect(etcd.url, job)

            await check_store(make)
        assert await everything(etcd, job) == 0  # the last to leave took all along

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


# Exactly once.


@pytest.mark.parametrize("lost", few([1, 2, 3], [2]))
async def test_what_is_asked_again_happens_once(etcd: Any, wire: Any, job: str, lost: int) -> None:
    async with (
        wire(etcd.ports[0]) as line,
        await EtcdStore.connect(f"etcd://{HOST}:{line.port}", job) as store,
        await EtcdStore.connect(etcd.url, job) as other,
    ):

        async def losing(call: Awaitable[Any]) -> Any:
            line.to_lose = lost
            return await call

        assert await losing(store.add("n", 5)) == 5
        assert await losing(store.add("n", 5)) == 10
        await losing(store.append("a", b"x"))
        await losing(store.append("a", b"y"))
        assert await losing(store.compare_set("c", b"", b"1")) == b"1"
        assert await losing(store.compare_set("c", b"1", b"2")) == b"2"
        await losing(store.multi_set(["d", "e"], [b"", b""]))
        assert await losing(store.delete_key("d")) is True
        await losing(store.set("s", b"v"))
        await losing(store.set("leased", b"v", ttl=60))
        assert line.to_lose == 0
        assert await other.multi_get(["n", "a", "c", "e", "s"]) == [b"10", b"xy", b"2", b"", b"v"]
        meeting = asyncio.ensure_future(other.gather("g", 2, 1, b"b"))
        assert await losing(store.gather("g", 2, 0, b"a")) == [b"a", b"b"] == await meeting
        error = None
        try:
            await losing(store.gather("g", 2, 0, b"a", timeout=2.0))
        except RendezvousTimeout as raised:
            error = raised
        assert error is not None
        assert error.missing == (1,)


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_an_attempt_that_arrives_late_finds_that_it_happened(
    etcd: Any, wire: Any, job: str, lost: str
) -> None:
    # A first attempt is lost on its way, and another one succeeds. Then the key changes. Should the first
    # one arrive after all, it must not undo that, also when this client has made many changes since.
    async with (
        wire(etcd.ports[0]) as line,
        await EtcdStore.connect(f"etcd://{HOST}:{line.port}", job) as store,
    ):
        sent: list[Any] = []
        call = store._gateway.call

        async def noting(path: str, body: Any, deadline: float) -> Any:
            sent.append((path, body))
            return await call(path, body, deadline)

        store._gateway.call = noting  # type: ignore[method-assign]
        line.to_drop, line.to_lose = int(lost == "request"), int(lost == "answer")
        await store.set("k", b"old")
        assert (line.to_drop, line.to_lose) == (0, 0)
        [late] = sent
        await store.set("k", b"new")
        for number in range(50):
            await store.add("n", number)
        answer = await etcd.ask(*late)
        assert not answer.get("succeeded")
        assert await store.get("k") == b"new"


async def test_marks_do_not_pile_up(etcd: Any, job: str) -> None:
    async with await EtcdStore.connect(etcd.url, job) as store:
        for _ in range(100):
            await store.add("n", 1)
        # The run, this client, the key, and the mark of the last change.
        assert await everything(etcd, job) == 4


# Many and large.


async def test_many_keys_at_once(etcd: Any, job: str) -> None:
    keys = [f"k{number:04}" for number in range(1000)]
    async with await EtcdStore.connect(etcd.url, job) as store:
        await store.multi_set([*keys, keys[0]], [b"%d" % number for number in range(1001)])
        assert await store.multi_get(keys[1:]) == [b"%d" % number for number in range(1, 1000)]
        assert await store.get(keys[0]) == b"1000"
        assert await store.list_keys() == keys
        assert await store.check(keys)


async def test_a_value_that_is_too_large(etcd: Any, job: str) -> None:
    async with await EtcdStore.connect(etcd.url, job) as store:
        for size in (1_600_000, 5_000_000):
            with pytest.raises(UsageError, match=r"too large for etcd.*Keep it under 1 MiB"):
                await store.set("k", bytes(size))
        with pytest.raises(UsageError, match="UTF-8"):
            await store.set("\ud800", b"")
        assert not await store.check(["k"])


@pytest.mark.slow(COSTLY)
async def test_a_large_gather(etcd: Any, job: str) -> None:
    async with await EtcdStore.connect(etcd.url, job) as store:
        cards = [bytes([rank]) * 500_000 for rank in range(12)]
        answers = await asyncio.gather(*(store.gather("g", 12, rank, cards[rank]) for rank in range(12)))
        assert answers == [cards] * 12


# Runs.


async def test_jobs_are_kept_apart(etcd: Any) -> None:
    jobs = ("a", "a/run", "a%2Frun", "a/")
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(await EtcdStore.connect(etcd.url, job)) for job in jobs]
        other = await stack.enter_async_context(await EtcdStore.connect(f"{etcd.url}/elsewhere", "a"))
        for job, store in zip(jobs, stores, strict=True):
            await store.set("k", job)
        assert [await store.get("k") for store in stores] == [job.encode() for job in jobs]
        assert await other.list_keys() == []


async def test_a_run_ends_with_its_last_process(etcd: Any, job: str) -> None:
    async with await EtcdStore.connect(etcd.url, job) as one:
        await one.set("k", b"v")
        async with await EtcdStore.connect(etcd.url, job) as two:
            await one.aclose()
            assert await two.get("k") == b"v"
    async with await EtcdStore.connect(etcd.url, job) as three:
        assert await three.list_keys() == []


@pytest.mark.slow(COSTLY)
async def test_what_a_dead_run_left_does_not_meet_the_next(
    etcd: Any, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(etcd_run, "CLIENT_SECONDS", 1)
        patched.setattr(etcd_run, "_KEEP_SECONDS", 1e6)  # it does not live, as far as etcd can see
        dead = await EtcdStore.connect(etcd.url, job)
        await dead.set("k", b"v")
    waits = asyncio.ensure_future(dead.get("never"))
    watch = dead.watch()
    assert await anext(watch) == WatchEvent("k", b"v")
    while True:  # etcd looks for leases that ran out twice a second
        async with await EtcdStore.connect(etcd.url, job) as fresh:
            if not await fresh.check(["k"]):
                await fresh.set("k", b"new")
                with pytest.raises(RendezvousError, match="does not know this run"):
                    await dead.set("k", b"late")
                with pytest.raises(RendezvousError, match="does not know this run"):
                    while True:  # it may have seen its key go
                        assert await anext(watch) == WatchEvent("k", None)
                for call in (waits, dead.get("k")):
                    with pytest.raises(RendezvousError, match="does not know this run"):
                        await call
                assert await fresh.get("k") == b"new"
                break
    await dead.aclose()


async def test_a_process_that_was_away_is_told_that_another_run_is_there(
    etcd: Any, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives, and so may its group, whose members were all away: they must not go on beside the others."""
    monkeypatch.setattr(etcd_run, "_KEEP_SECONDS", 0.05)
    away, told = False, asyncio.Event()
    with monkeypatch.context() as patched:
        patched.setattr(etcd_run, "CLIENT_SECONDS", 1)
        before = await EtcdStore.connect(etcd.url, job)
    before.on_replaced = told.set
    call = before._gateway.call

    async def reach(*asked: Any) -> Any:
        if away:
            raise RendezvousTimeout("cut off")
        return await call(*asked)

    monkeypatch.setattr(before._gateway, "call", reach)
    await before.set("k", b"v")
    away = True
    while True:  # etcd looks for leases that ran out twice a second
        async with await EtcdStore.connect(etcd.url, job) as fresh:
            if not await fresh.check(["k"]):
                assert not told.is_set()
                away = False
                await told.wait()
                with pytest.raises(RendezvousError, match="does not know this run"):
                    await before.get("k")
                break
    await before.aclose()


async def test_a_process_that_was_away_is_there_again(
    etcd: Any, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_run, "_KEEP_SECONDS", 0.05)
    async with await EtcdStore.connect(etcd.url, job) as store:
        before = store._run._own_lease
        await store._run.revoke(before, asyncio.get_running_loop().time() + 60)
        here = store._run.is_here(store._run.client)
        while (await etcd.ask("/v3/kv/range", {"key": b64encode(here).decode()})).get("count") != "1":
            pass
        assert store._run._own_lease != before


async def test_a_dead_process_keeps_no_place_in_a_gather(
    etcd: Any, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodist.rendezvous.etcd.waiting.READ_SECONDS", 0.1)
    async with await EtcdStore.connect(etcd.url, job) as one, await EtcdStore.connect(etcd.url, job) as two:
        waits = asyncio.ensure_future(one.gather("g", 2, 0, b"dead"))
        await arrived(one)
        with pytest.raises(RendezvousError, match="two processes are rank 0 at 'g'"):
            await two.gather("g", 2, 0, b"living")
        with pytest.raises(RendezvousError, match="rank 1 comes to 'g' in a world of 3, rank 0 in one of 2"):
            await two.gather("g", 3, 1, b"living")
        one._run._keeper.cancel()  # type: ignore[union-attr]
        await one._run.revoke(one._run._own_lease, asyncio.get_running_loop().time() + 60)
        living = asyncio.ensure_future(two.gather("g", 2, 0, b"living"))
        await arrived(two)
        assert await two.gather("g", 2, 1, b"b") == [b"living", b"b"] == await living
        with pytest.raises(RendezvousError, match="rank 0 lost its place at 'g'"):
            await waits


async def test_who_met_the_others_before_dying_has_met_them(etcd: Any, job: str) -> None:
    async with await EtcdStore.connect(etcd.url, job) as one, await EtcdStore.connect(etcd.url, job) as two:
        deadline = asyncio.get_running_loop().time() + 60
        waits = asyncio.ensure_future(one.gather("g", 2, 0, b"dead"))
        await arrived(one)
        call = WaitingCall(asyncio.get_running_loop(), 60, 0.0)
        late = Gather(two._gateway, two._run, two._ledger, call, name="g", size=2, rank=0, value=b"late")
        now = await late.now()
        assert now is not None
        one._run._keeper.cancel()  # type: ignore[union-attr]
        await one._run.revoke(one._run._own_lease, deadline)
        assert await two.gather("g", 2, 1, b"b") == [b"dead", b"b"] == await waits
        # Who came as rank 0, and saw the round before it ended, takes nothing out of it now.
        with pytest.raises(RefusedError, match="two processes are rank 0"):
            await late.clear_away(now)
        at = late.base + json.loads(now.value)["round"].encode() + b"/rank/"
        found = await two._run.txn([], [words.count_all(at)], deadline=deadline)
        assert found.ranges[0].count == 2


async def test_old_rounds_are_tidied_up(etcd: Any, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodist.rendezvous.etcd.rounds.KEPT_SECONDS", 0.01)
    async with await EtcdStore.connect(etcd.url, job) as store:
        for turn in range(3):
            assert await store.gather(f"g{turn}", 1, 0, b"v") == [b"v"]
        await store.set("k", b"v")
        while await everything(etcd, job) > 4:
            pass


# Watches.


async def test_a_watch_goes_on_where_it_broke(etcd: Any, wire: Any, job: str) -> None:
    async with (
        wire(etcd.ports[0]) as line,
        await EtcdStore.connect(f"etcd://{HOST}:{line.port}", job) as store,
        await EtcdStore.connect(etcd.url, job) as other,
        store.watch("w/") as watch,
    ):
        await other.set("w/a", b"1")
        assert await anext(watch) == WatchEvent("w/a", b"1")
        line.cut()
        await other.set("w/a", b"2")
        await other.set("w/b", b"1")
        await other.delete_key("w/b")
        line.is_cut = False
        seen = [await anext(watch) for _ in range(3)]
        assert seen == [WatchEvent("w/a", b"2"), WatchEvent("w/b", b"1"), WatchEvent("w/b", None)]


async def test_a_watch_survives_compaction(etcd: Any, wire: Any, job: str) -> None:
    async with (
        wire(etcd.ports[0]) as line,
        await EtcdStore.connect(f"etcd://{HOST}:{line.port}", job) as store,
        await EtcdStore.connect(etcd.url, job) as other,
        store.watch("w/") as watch,
    ):
        await other.multi_set(["w/a", "w/b"], [b"1", b"1"])
        assert {await anext(watch), await anext(watch)} == {WatchEvent("w/a", b"1"), WatchEvent("w/b", b"1")}
        line.cut()
        await other.set("w/a", b"2")
        await other.set("w/a", b"3")
        await other.delete_key("w/b")
        answer = await etcd.ask("/v3/kv/range", {"key": b64encode(b"none").decode()})
        await etcd.ask("/v3/kv/compaction", {"revision": answer["header"]["revision"]})
        line.is_cut = False
        assert [await anext(watch) for _ in range(2)] == [WatchEvent("w/b", None), WatchEvent("w/a", b"3")]
        await other.set("w/c", b"1")
        assert await anext(watch) == WatchEvent("w/c", b"1")


# Closing, and other loops.


async def test_a_closed_store_says_so(etcd: Any, job: str) -> None:
    store = await EtcdStore.connect(etcd.url, job)
    waits = [asyncio.ensure_future(call) for call in (store.get("never"), store.barrier("b", 2, 0))]
    watch = store.watch("w")
    await arrived(store)
    await store.aclose()
    await store.aclose()
    for call in (*waits, anext(watch), store.get("k")):
        with pytest.raises(RendezvousError, match="the store is closed"):
            await call


async def test_closing_does_not_wait_for_an_etcd_that_is_gone(start_etcd: Callable[..., Any]) -> None:
    etcd = start_etcd()
    store = await EtcdStore.connect(etcd.url, "job", 30)
    waits = asyncio.ensure_future(store.barrier("b", 2, 0, timeout=2.0))
    watch = store.watch()
    await arrived(store)
    etcd.kill()
    with pytest.raises(
        RendezvousTimeout, match=r"cannot reach etcd at 127\.0\.0\.1:\d+ \(Connection refused\)"
    ):
        await waits
    await store.aclose()
    with pytest.raises(RendezvousError, match="the store is closed"):
        await anext(watch)


async def test_a_store_belongs_to_its_loop(etcd: Any, job: str) -> None:
    async with await EtcdStore.connect(etcd.url, job) as store:
        with pytest.raises(UsageError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, store.get("k"))


async def test_fences_and_leases(etcd: Any, job: str) -> None:
    async with (
        await EtcdStore.connect(etcd.url, job) as store,
        await EtcdStore.connect(etcd.url, job) as other,
        await EtcdStore.connect(etcd.url, f"{job}/other") as elsewhere,
    ):
        numbers = [await each.fence() for each in (store, other, elsewhere, store)]
        assert numbers == sorted(set(numbers))
        async with store.lease(60) as lease:
            assert lease.token > numbers[-1]
            await lease.set("a", b"1")
            await other.set("b", b"2")
            assert await other.list_keys() == ["a", "b"]
        assert await other.list_keys() == ["b"]
        async with store.lease(0.5) as lost:
            await lost.set("a", b"1")
            await other._call("lease_end", [lost.token])
            assert await other.list_keys() == ["b"]
            await lost.wait_lost()
            with pytest.raises(LeaseLost):
                await lost.set("a", b"1")


async def test_a_lease_lasts_while_it_is_renewed(etcd: Any, job: str) -> None:
    async with (
        await EtcdStore.connect(etcd.url, job) as store,
        await EtcdStore.connect(etcd.url, job) as other,
        other.watch() as watch,
        store.lease(1) as lease,
    ):
        await lease.set("kept", b"v")
        await other.set("dead", b"", ttl=3)  # longer than etcd's shortest, of two seconds
        seen = [await anext(watch) for _ in range(3)]
        assert seen[-1] == WatchEvent("dead", None)
        assert lease.held
        assert await other.list_keys() == ["kept"]


# What is not let in.


async def test_nobody_there(needs_etcd: None, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_ipv6()
    monkeypatch.setattr(gateway.Gateway, "_turn", lambda self, at: clock.forward(60))  # it has been told no
    with pytest.raises(RendezvousTimeout) as raised:
        await EtcdStore.connect(f"etcd://{HOST}:1,[::1]:1", "job", 30)
    assert str(raised.value) == (
        f"cannot reach etcd at {HOST}:1, [::1]:1 (Connection refused) after 30 s. "
        "See whether etcd is running, and is at that address"
    )


async def test_somebody_else_there(needs_etcd: None, wire: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RendezvousError, match="not etcd's JSON gateway"):
            await EtcdStore.connect(f"etcd://{HOST}:{port}", "job", 10)


@pytest.mark.slow(COSTLY)
async def test_users_and_passwords(start_etcd: Callable[..., Any]) -> None:
    etcd = start_etcd()
    for path, body in (
        ("/v3/auth/user/add", {"name": "root", "password": "sesame"}),
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/user/add", {"name": "guest", "password": "hush"}),
        ("/v3/auth/enable", {}),
    ):
        await etcd.ask(path, body)

    async def connect(user: str, password: str) -> EtcdStore:
        environ = {"AIODIST_ETCD_USER": user, "AIODIST_ETCD_PASSWORD": password}
        return await EtcdStore.connect(etcd.url, "job", 30, environ=environ)

    with pytest.raises(AuthenticationError, match=r"^etcd refused user and password\. Look at") as raised:
        await connect("root", "open it")
    assert "open it" not in str(raised.value)
    with pytest.raises(AuthenticationError, match="Grant its role"):
        await connect("guest", "hush")
    with pytest.raises(AuthenticationError, match="wants a user"):
        await EtcdStore.connect(etcd.url, "job", 30, environ={})
    async with await connect("root", "sesame") as store:
        assert await store.add("n", 1) == 1
        watch = store.watch("k")
        etcd.kill()  # and with it the tokens that it gave out
        etcd.start()
        assert await store.add("n", 1) == 2
        await store.set("k", b"v")
        assert await anext(watch) == WatchEvent("k", b"v")


async def test_a_user_that_etcd_does_not_ask_for(etcd: Any, job: str) -> None:
    environ = {"AIODIST_ETCD_USER": "root", "AIODIST_ETCD_PASSWORD": "sesame"}
    async with await EtcdStore.connect(etcd.url, job, environ=environ) as store:
        assert await store.add("n", 1) == 1


def certificates(folder: Path) -> dict[str, str]:
    """A CA, and what it signed for a server on the loopback and for a client."""
    paths = {
        name: str(folder / f"{name}.pem") for name in ("ca", "ca-key", "server", "server-key", "me", "me-key")
    }
    common = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]

    def make(name: str, *more: str) -> None:
        command = [
            *common,
            "-subj",
            f"/CN={name}",
            "-out",
            paths[name],
            "-keyout",
            paths[f"{name}-key"],
            *more,
        ]
        subprocess.run(command, check=True, capture_output=True)

    make("ca", "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 asks for it
    signed = ("-CA", paths["ca"], "-CAkey", paths["ca-key"])
    make("server", *signed, "-addext", f"subjectAltName=IP:{HOST}", "-addext", "basicConstraints=CA:FALSE")
    make("me", *signed, "-addext", "basicConstraints=CA:FALSE")
    return paths


async def test_tls_with_client_certificates(start_etcd: Callable[..., Any], tmp_path: Path, job: str) -> None:
    paths = certificates(tmp_path)
    options = (
        *("--client-cert-auth", "--trusted-ca-file", paths["ca"]),
        *("--cert-file", paths["server"], "--key-file", paths["server-key"]),
    )
    etcd = start_etcd(options=options, scheme="https")
    environ = {
        "AIODIST_ETCD_CA": paths["ca"],
        "AIODIST_ETCD_CERT": paths["me"],
        "AIODIST_ETCD_KEY": paths["me-key"],
    }
    async with await EtcdStore.connect(etcd.url, job, 30, environ=environ) as store:
        await store.set("k", b"v")
        assert await store.get("k") == b"v"
    with pytest.raises(
        AuthenticationError, match=r"certificate of etcd .* was refused \(.*\)\. Set AIODIST_ETCD_CA"
    ):
        await EtcdStore.connect(etcd.url, job, 30, environ={})
    with pytest.raises(AuthenticationError, match=r"wants another certificate .*\. Set AIODIST_ETCD_CERT"):
        await EtcdStore.connect(etcd.url, job, 30, environ={"AIODIST_ETCD_CA": paths["ca"]})
    with pytest.raises(RendezvousTimeout, match=r"ended before the answer.*with TLS it is etcds://"):
        await EtcdStore.connect(etcd.url.replace("etcds", "etcd"), job, 1, environ={})


async def test_tls_where_etcd_speaks_none(etcd: Any, job: str) -> None:
    with pytest.raises(RendezvousTimeout, match="etcd:// is without TLS"):
        await EtcdStore.connect(etcd.url.replace("etcd", "etcds"), job, 1, environ={})
