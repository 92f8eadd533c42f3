"""The rules of every store, as one check that each of them runs.

    await check_store(make_store)

A failed check raises AssertionError (or what the store raised) with the name of the check in its notes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiodist.base.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.rendezvous import Store, WatchEvent, claim_rank, release_rank

MakeStore = Callable[[], Awaitable[Store]]
"""A maker of a handle on one store of the running loop, as for one more process; the check closes it."""

LIMIT = 60.0
"""Seconds that each check may take before it counts as a hang."""

_SOON = 0.05  # seconds; for what must run out of time


async def check_store(make_store: MakeStore) -> None:
    """Run every check against three handles on one store, each under keys of its own."""
    for check in CHECKS:
        try:
            async with asyncio.timeout(LIMIT):
                handles = [await make_store() for _ in range(3)]
                try:
                    await check(f"{check.__name__}/", *handles)
                finally:
                    for handle in handles:
                        await handle.aclose()
        except BaseException as error:
            error.add_note(f"in the store check '{check.__name__}'")
            raise


async def values(at: str, one: Store, two: Store, three: Store) -> None:
    """Values that one sets, the others get; bytes as they are, str as UTF-8."""
    await one.set(f"{at}bytes", b"\x00\xff")
    await two.set(f"{at}text", "grün")
    await three.set(f"{at}view", memoryview(b"seen"))
    assert await three.get(f"{at}bytes") == b"\x00\xff"
    assert await one.get(f"{at}text") == "grün".encode()
    assert await two.get(f"{at}view") == b"seen"
    await two.set(f"{at}bytes", b"")
    assert await one.get(f"{at}bytes") == b""
    large = bytes(range(256)) * 4096
    await one.set(f"{at}large", large)
    assert await two.get(f"{at}large") == large


async def many(at: str, one: Store, two: Store, three: Store) -> None:
    """multi_set and multi_get keep the order they are given; a repeated key is fine."""
    keys = [f"{at}{number}" for number in (3, 1, 2)]
    await one.multi_set(keys, [b"three", "one", b"two"])
    assert await two.multi_get(keys) == [b"three", b"one", b"two"]
    assert await three.multi_get([keys[1], keys[1], keys[0]]) == [b"one", b"one", b"three"]
    assert await one.multi_get([]) == []
    await one.wait([])
    await refused(one.multi_set(keys, [b"one"]))


async def waiting(at: str, one: Store, two: Store, three: Store) -> None:
    """A get waits for its key and holds up nobody; also when keys come one by one, or go again."""
    waiting = [
        asyncio.ensure_future(call)
        for call in (one.multi_get([f"{at}a", f"{at}b"]), two.wait([f"{at}b"]), one.get(f"{at}a"))
    ]
    await arrived(one, two)
    await three.set(f"{at}other", b"")
    assert await one.get(f"{at}other") == b""
    assert not any(call.done() for call in waiting)
    await three.set(f"{at}a", b"early")
    assert await waiting[2] == b"early"
    assert await three.delete_key(f"{at}a")
    await three.set(f"{at}b", b"B")
    await waiting[1]
    assert not waiting[0].done()
    await three.set(f"{at}a", b"A")
    assert await waiting[0] == [b"A", b"B"]


async def timeouts(at: str, one: Store, two: Store, three: Store) -> None:
    """Keys that never come are named when the time is up; the store goes on."""
    await one.set(f"{at}here", b"x")
    error = await fails(one.multi_get([f"{at}here", f"{at}never"], timeout=_SOON), RendezvousTimeout)
    assert "never" in str(error)
    assert f"{at}here'" not in str(error)
    assert isinstance(error, RendezvousTimeout)
    assert error.missing == (f"{at}never",)
    error = await fails(two.wait([f"{at}neither"], timeout=_SOON), RendezvousTimeout)
    assert "neither" in str(error)
    assert await one.get(f"{at}here") == b"x"
    await refused(one.get(f"{at}here", timeout=0))
    await refused(one.get(f"{at}here", timeout=-1))


async def numbers(at: str, one: Store, two: Store, three: Store) -> None:
    """add counts exactly, from everywhere; what it leaves is a decimal number."""
    assert await one.add(f"{at}n", 0) == 0
    sums = await asyncio.gather(*(store.add(f"{at}n", 3) for store in (one, two, three) for _ in range(20)))
    assert sorted(sums) == list(range(3, 183, 3))
    assert await two.add(f"{at}n", -200) == -20
    assert await three.get(f"{at}n") == b"-20"
    await one.set(f"{at}n", "41")
    assert await two.add(f"{at}n", 1) == 42
    await one.set(f"{at}word", b"word")
    await refused(two.add(f"{at}word", 1))
    assert await one.get(f"{at}word") == b"word"
    await one.set(f"{at}n", str(2**63 - 1))
    await refused(two.add(f"{at}n", 1))


async def swaps(at: str, one: Store, two: Store, three: Store) -> None:
    """compare_set as torch's: of several that compete one wins, and all learn which."""
    assert await one.compare_set(f"{at}k", b"expected", b"desired") == b"expected"
    assert not await one.check([f"{at}k"])
    answers = await asyncio.gather(
        *(store.compare_set(f"{at}k", b"", name) for store, name in ((one, "1"), (two, "2"), (three, "3")))
    )
    assert len(set(answers)) == 1
    assert answers[0] in (b"1", b"2", b"3")
    assert await two.compare_set(f"{at}k", b"wrong", b"x") == answers[0]
    assert await two.compare_set(f"{at}k", answers[0], b"x") == b"x"
    assert await three.get(f"{at}k") == b"x"


async def keys(at: str, one: Store, two: Store, three: Store) -> None:
    """append, delete_key, check, list_keys, num_keys."""
    await one.append(f"{at}list", b"a")
    await two.append(f"{at}list", "b")
    assert await three.get(f"{at}list") == b"ab"
    await one.multi_set([f"{at}x/2", f"{at}x/1", f"{at}y"], [b"", b"", b""])
    assert await two.list_keys(f"{at}x/") == [f"{at}x/1", f"{at}x/2"]
    assert await two.num_keys(at) == 4
    assert len(await three.list_keys()) == await three.num_keys()
    assert await two.check([f"{at}x/1", f"{at}y"])
    assert not await two.check([f"{at}x/1", f"{at}z"])
    assert await three.delete_key(f"{at}x/1") is True
    assert await one.delete_key(f"{at}x/1") is False
    assert await one.list_keys(f"{at}x/") == [f"{at}x/2"]


async def leases(at: str, one: Store, two: Store, three: Store) -> None:
    """A leased key goes when its time is up, unless it is renewed or becomes an ordinary one."""
    async with one.watch(at) as watch:
        await two.set(f"{at}kept", b"1", ttl=_SOON)
        await two.set(f"{at}kept", b"2")
        await two.set(f"{at}gone", b"3", ttl=_SOON)
        await two.add(f"{at}counted", 1)
        while await anext(watch) != WatchEvent(f"{at}gone", None):
            pass  # a slow store may have let the others' time run out in between, too
    assert await three.list_keys(at) == [f"{at}counted", f"{at}kept"]
    assert await one.get(f"{at}kept") == b"2"
    await refused(two.set(f"{at}kept", b"", ttl=0))


async def watches(at: str, one: Store, two: Store, three: Store) -> None:
    """A watch tells what is there, then every change in order; only under its prefix."""
    await one.set(f"{at}w/old", b"0")
    async with two.watch(f"{at}w/") as watch:
        assert await anext(watch) == WatchEvent(f"{at}w/old", b"0")
        await one.set(f"{at}elsewhere", b"no")
        await one.set(f"{at}w/new", b"1")
        await one.add(f"{at}w/n", 5)
        await one.delete_key(f"{at}w/old")
        await one.set(f"{at}w/new", b"2")
        assert [await anext(watch) for _ in range(4)] == [
            WatchEvent(f"{at}w/new", b"1"),
            WatchEvent(f"{at}w/n", b"5"),
            WatchEvent(f"{at}w/old", None),
            WatchEvent(f"{at}w/new", b"2"),
        ]
    assert [event async for event in watch] == []
    await one.set(f"{at}w/new", b"3")


async def gathers(at: str, one: Store, two: Store, three: Store) -> None:
    """A gather gives everybody everybody's, in rank order; its name serves round after round."""
    stores = (three, one, two)  # rank r is not handle r
    for turn in range(3):
        answers = await asyncio.gather(
            *(store.gather(f"{at}g", 3, rank, f"{turn}.{rank}") for rank, store in enumerate(stores))
        )
        expected = [f"{turn}.{rank}".encode() for rank in range(3)]
        assert answers == [expected] * 3
    assert await one.gather(f"{at}alone", 1, 0, b"me") == [b"me"]
    await refused(one.gather(f"{at}g", 3, 3, b""))
    await refused(one.gather(f"{at}g", 0, 0, b""))


async def barriers(at: str, one: Store, two: Store, three: Store) -> None:
    """A barrier lets nobody pass before all have come; it names who never came, within the time."""
    first = asyncio.ensure_future(one.barrier(f"{at}b", 3, 0))
    second = asyncio.ensure_future(two.barrier(f"{at}b", 3, 1))
    await arrived(one, two)
    assert not first.done()
    assert not second.done()
    await three.barrier(f"{at}b", 3, 2)
    await asyncio.gather(first, second)

    errors = await asyncio.gather(
        fails(one.barrier(f"{at}c", 4, 0, timeout=_SOON), RendezvousTimeout),
        fails(three.barrier(f"{at}c", 4, 2, timeout=_SOON), RendezvousTimeout),
    )
    for error in errors:
        assert isinstance(error, RendezvousTimeout)
        assert error.missing == (1, 3)
        assert "ranks 1 and 3" in str(error)
    # Who gave up may come again, and is not counted twice.
    await asyncio.gather(
        one.barrier(f"{at}c", 2, 0), two.barrier(f"{at}c", 2, 1), three.barrier(f"{at}other", 1, 0)
    )


async def contradictions(at: str, one: Store, two: Store, three: Store) -> None:
    """Two of one rank, or of worlds of different size, are told; the first is left waiting."""
    first = asyncio.ensure_future(one.barrier(f"{at}b", 2, 1))
    await arrived(one)
    error = await fails(two.barrier(f"{at}b", 2, 1), RendezvousError)
    assert "two processes are rank 1" in str(error)
    error = await fails(two.barrier(f"{at}b", 3, 0), RendezvousError)
    assert "world of 3" in str(error)
    await two.barrier(f"{at}b", 2, 0)
    await first


async def claims(at: str, one: Store, two: Store, three: Store) -> None:
    """A rank is one process's, until that gives it back."""
    rank = 1_000_000 + len(at)
    await claim_rank(one, rank, b"pid 4711 on host a")
    await claim_rank(one, rank, b"pid 4711 on host a")
    error = await fails(claim_rank(two, rank, b"pid 4712 on host b"), RendezvousError)
    assert f"rank {rank} is taken by pid 4711 on host a; this is pid 4712 on host b" in str(error)
    await release_rank(two, rank, b"pid 4712 on host b")
    await fails(claim_rank(two, rank, b"pid 4712 on host b"), RendezvousError)
    await release_rank(one, rank, b"pid 4711 on host a")
    await claim_rank(two, rank, b"pid 4712 on host b")
    await release_rank(two, rank, b"pid 4712 on host b")


async def cancelling(at: str, one: Store, two: Store, three: Store) -> None:
    """A cancelled call leaves nothing behind: its key is not waited for, its rank has not come."""
    for call in (one.get(f"{at}k"), one.barrier(f"{at}b", 2, 0)):
        task = asyncio.ensure_future(call)
        await arrived(one)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    await asyncio.gather(one.barrier(f"{at}b", 2, 0), two.barrier(f"{at}b", 2, 1))


async def nonsense(at: str, one: Store, two: Store, three: Store) -> None:
    """Anything that is no key or value is refused before it is sent."""
    wrong: Any = 5
    await refused(one.set(wrong, b""))
    await refused(one.set(f"{at}k", wrong))
    await refused(one.set("k" * 10_000, b""))
    await refused(one.wait("abc"))
    await refused(one.add(f"{at}k", 1.5))  # type: ignore[arg-type]
    assert not await two.check([f"{at}k"])


CHECKS = (
    values,
    many,
    waiting,
    timeouts,
    numbers,
    swaps,
    keys,
    leases,
    watches,
    gathers,
    barriers,
    contradictions,
    claims,
    cancelling,
    nonsense,
)
"""All checks, each taking a prefix for its keys and three handles."""


async def arrived(*stores: Store) -> None:
    """Return when what other tasks asked of these handles before has reached the store."""
    await asyncio.sleep(0)  # they start
    for store in stores:
        await store.check([])


async def fails(call: Awaitable[Any], kind: type[Exception]) -> Exception:
    """The error of a call that must fail with one."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


async def refused(call: Awaitable[Any]) -> None:
    """Check that a call is a UsageError."""
    await fails(call, UsageError)
