"""Every store passes the same checks, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop

from aiodist.base.errors import RendezvousError, UsageError
from aiodist.rendezvous import FileStore, HashStore, PrefixStore, Store, StoreServer, TcpStore
from aiodist.testing.conformance_store import arrived, check_store
from tests.ports import needs_ipv6

Make = Callable[[], Awaitable[Store]]
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Shared(PrefixStore):
    """One HashStore under several handles: closing one must not end the others."""

    def __init__(self, store: Store) -> None:
        super().__init__("shared", store)


async def hash_store(stack: AsyncExitStack, folder: Path) -> Make:
    store = await stack.enter_async_context(HashStore())

    async def make() -> Store:
        return Shared(store)

    return make


async def tcp_store(stack: AsyncExitStack, folder: Path) -> Make:
    server = await stack.enter_async_context(await StoreServer.start("127.0.0.1", 0, "job", b"secret"))

    async def make() -> Store:
        return await TcpStore.connect("127.0.0.1", server.port, "job", b"secret")

    return make


async def tcp6_store(stack: AsyncExitStack, folder: Path) -> Make:
    needs_ipv6()
    server = await stack.enter_async_context(await StoreServer.start("::1", 0, "job", b""))

    async def make() -> Store:
        return await TcpStore.connect("::1", server.port, "job", b"")

    return make


async def prefix_store(stack: AsyncExitStack, folder: Path) -> Make:
    server = await stack.enter_async_context(await StoreServer.start("127.0.0.1", 0, "job", b"secret"))
    inner = await stack.enter_async_context(
        await TcpStore.connect("127.0.0.1", server.port, "job", b"secret")
    )
    await inner.set("outside", b"")

    async def make() -> Store:
        return PrefixStore("a", PrefixStore("b", inner))

    return make


async def file_store(stack: AsyncExitStack, folder: Path) -> Make:
    async def make() -> Store:
        return await FileStore.open(folder / "meet", "job", b"secret", linger=0.001)

    return make


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("store", [hash_store, tcp_store, tcp6_store, prefix_store, file_store])
def test_check_store(
    store: Callable[[AsyncExitStack, Path], Awaitable[Make]], loop: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            await check_store(await store(stack, tmp_path))

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
    assert list(tmp_path.iterdir()) == []


async def test_a_closed_store_says_so() -> None:
    async with await StoreServer.start("127.0.0.1", 0, "job", b"") as server:
        stores: list[Store] = [HashStore(), await TcpStore.connect("127.0.0.1", server.port, "job", b"")]
        for store in stores:
            waits = asyncio.ensure_future(store.get("never"))
            watch = store.watch("w")
            await arrived(store)
            await store.aclose()
            await store.aclose()
            for call in (waits, anext(watch), store.get("k")):
                with pytest.raises(RendezvousError, match="the store is closed"):
                    await call


async def test_a_hash_store_belongs_to_its_loop() -> None:
    async with HashStore() as store:
        await store.set("k", b"v")
        with pytest.raises(UsageError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, store.get("k"))


async def test_a_watch_has_one_reader() -> None:
    async with HashStore() as store:
        watch = store.watch("nothing")
        first = asyncio.ensure_future(anext(watch))
        await arrived(store)
        with pytest.raises(UsageError, match="by another task"):
            await anext(watch)
        first.cancel()
        await asyncio.wait([first])
        await watch.aclose()


async def test_ranks_of_a_hash_store_get_lists_of_their_own() -> None:
    async with HashStore() as store:
        one, two = await asyncio.gather(*(store.gather("g", 2, r, b"%d" % r) for r in range(2)))
        one.clear()
        assert two == [b"0", b"1"]
