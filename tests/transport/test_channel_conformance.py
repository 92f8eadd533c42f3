"""Every transport passes the public conformance check, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import product

import pytest
import uvloop

from aiodist.transport import EAGER_BUDGET, Endpoint, MemoryEndpoint, MemoryNetwork, SocketEndpoint
from aiodist.transport.endpoint import Mode
from aiodist.transport.shm.arena import available
from tests.levels import few
from tests.support.conformance_channel import CHECKS, MakePair, check_channel

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}
# uvloop opens one pipe per process with its first loop, for good: before anybody counts descriptors.

TRANSPORTS = ["memory", "delayed", "tcp", *(["shm"] if available() else [])]
BUDGETS = [EAGER_BUDGET, 0, 5000]
QUICK = [  # each kind of transport, each loop and each budget
    ("memory", "asyncio", EAGER_BUDGET),
    ("tcp", "asyncio", 0),
    *([("shm", "uvloop", 5000)] if available() else []),
]


def pair_maker(transport: str, eager_budget: int) -> MakePair:
    async def make() -> tuple[Endpoint, Endpoint]:
        loop = asyncio.get_running_loop()
        pair: list[Endpoint]
        if transport in ("memory", "delayed"):
            network = MemoryNetwork((lambda src, dst: 0.0001 * (1 + src)) if transport == "delayed" else None)
            pair = [MemoryEndpoint(network, rank, eager_budget=eager_budget) for rank in range(2)]
        else:
            mode: Mode = "shm" if transport == "shm" else "tcp"
            pair = [
                SocketEndpoint(loop, rank, "job", b"secret", mode=mode, eager_budget=eager_budget)
                for rank in range(2)
            ]
        for endpoint in pair:
            endpoint.introduce({rank: other.card for rank, other in enumerate(pair)})
        if transport == "shm":
            await asyncio.gather(*(endpoint.prove_local([0, 1]) for endpoint in pair))
        return pair[0], pair[1]

    return make


def open_things() -> list[str]:
    """The sockets and memfds that this process has open or mapped."""
    if not available():
        return []
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the listing's own descriptor
    with open("/proc/self/maps") as maps:
        found += [line for line in maps if "memfd:aiodist" in line]
    return sorted(
        name for name in found if name.startswith(("socket:", "/memfd:")) or "memfd:aiodist" in name
    )


@pytest.mark.parametrize(
    ("transport", "loop", "eager_budget"), few(product(TRANSPORTS, LOOPS, BUDGETS), QUICK)
)
def test_conformance(transport: str, loop: str, eager_budget: int) -> None:
    complaints: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        before = open_things()
        await check_channel(pair_maker(transport, eager_budget), eager_budget=eager_budget)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert open_things() == before

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
    assert not complaints


def test_all_checks_are_run() -> None:
    import tests.support.conformance_channel as module

    defined = {f for name, f in vars(module).items() if name.startswith("check_") and name != "check_channel"}
    assert defined == set(CHECKS)
