"""A job whose TCP connections all lead through proxies: a `FaultProxy` for each two ranks.

Ranks tell each other their addresses through the store. A rank of such a job meets over a `DetourStore`,
which shows it, in place of each peer's address, that of the proxy which leads there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgpack

from aiodist.base.environment import job_id, secret, split_address, tls
from aiodist.rendezvous import PrefixStore, Store, TcpStore
from tests.support.faults.proxy import Address, FaultProxy

_CARDS = "/cards"  # the round of `group.epochs.world` in which addresses are shown


class DetourStore(PrefixStore):
    """A store that shows proxies instead of peers, when the job first meets. Later epochs connect directly.

    Args:
        store: the store; it stays the caller's.
        ways: by peer, the address that leads to it; others are shown as they are.
        listens: called with `host` and `port` of this rank before the peers know them.
    """

    def __init__(self, store: Store, ways: Mapping[int, Sequence[Any]], listens: Callable[..., None]) -> None:
        super().__init__("detour", store)
        self._ways = ways
        self._listens = listens
        self._shown = False

    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        if self._shown or method != "gather" or not args[0].endswith(_CARDS):
            return await super()._call(method, args, timeout)
        self._shown = True
        host, port = _unpack(args[3])["endpoint"]["tcp"]
        self._listens(host=host, port=port)
        answers = await super()._call(method, args, timeout)
        for peer, way in self._ways.items():
            card = _unpack(answers[peer])
            card["endpoint"]["tcp"] = list(way)
            answers[peer] = msgpack.packb(card)
        return answers


def _unpack(card: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(card, strict_map_key=False)
    return found


async def detour_store(ways: Mapping[str, Sequence[Any]], listens: Callable[..., None]) -> DetourStore:
    """Reach the job's store (AIODIST_STORE) by way of the proxies, in a rank process.

    Args:
        ways: by peer (as JSON has it), host and port.
        listens: see `DetourStore`.
    """
    address = split_address(os.environ["AIODIST_STORE"])
    assert address is not None, "detours need a store that no rank hosts"
    store = await TcpStore.connect(*(*address, job_id(os.environ), secret(os.environ)), tls=tls(os.environ))
    return DetourStore(store, {int(peer): way for peer, way in ways.items()}, listens)


class Detours:
    """The proxies of a job, in the process that tests it.

    Args:
        size: number of ranks.
        seed: of what is random in them.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self._leads: dict[int, asyncio.Future[Address]] = {}
        self._proxies: dict[tuple[int, int], FaultProxy] = {}
        self._size = size
        self._seed = seed

    async def start(self) -> None:
        """Listen, on loopback."""
        loop = asyncio.get_running_loop()
        self._leads = {rank: loop.create_future() for rank in range(self._size)}
        for dialer in range(self._size):
            for peer in range(self._size):
                if dialer != peer:
                    number = self._seed * self._size**2 + dialer * self._size + peer
                    self._proxies[dialer, peer] = await FaultProxy.start(self._lead(peer), seed=number)

    async def aclose(self) -> None:
        """Cut all connections and stop listening."""
        for proxy in self._proxies.values():
            await proxy.aclose()

    def between(self, dialer: int, peer: int) -> FaultProxy:
        """The proxy of the connections that `dialer` makes to `peer`.

        Data that a rank sends goes over connections that it dialed. Control links go both ways, over
        one connection that the higher rank dialed.
        """
        return self._proxies[dialer, peer]

    def of(self, ranks: Iterable[int], others: Iterable[int] | None = None) -> list[FaultProxy]:
        """All proxies between one set of ranks and another (all others), whoever dialed."""
        some = set(ranks)
        rest = set(range(self._size)) - some if others is None else set(others)
        return [
            proxy
            for (dialer, peer), proxy in self._proxies.items()
            if (dialer in some and peer in rest) or (dialer in rest and peer in some)
        ]

    def ways(self, rank: int) -> dict[str, list[Any]]:
        """The addresses that this rank shall dial, by peer."""
        return {
            str(peer): list(proxy.address)
            for (dialer, peer), proxy in self._proxies.items()
            if dialer == rank
        }

    def lead_to(self, rank: int, address: Address) -> None:
        """A rank listens there."""
        if not self._leads[rank].done():
            self._leads[rank].set_result(address)

    def _lead(self, rank: int) -> Callable[[], asyncio.Future[Address]]:
        return lambda: self._leads[rank]
