"""Black holes between hosts: what is sent vanishes, and comes again when healed."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from aiodist.testing.hosts import Hosts
from tests.levels import COSTLY
from tests.support.faults import Partition, Stage, Victims

PORT = 30_000


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as made:
        yield made


async def datagrams(stage: Stage, addresses: list[str]) -> None:
    """Send a datagram to everybody when told, and say which come."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((addresses[stage.rank], PORT))
        sock.settimeout(0.001)
        stage.say("ready")
        while True:
            for word in stage.told():
                if word == "end":
                    return
                for other, address in enumerate(addresses):
                    if other != stage.rank:
                        sock.sendto(f"{stage.rank} {word}".encode(), (address, PORT))
            try:
                sender, word = sock.recv(100).decode().split()
            except TimeoutError:
                continue
            stage.say("got", sender=int(sender), word=word)


@pytest.mark.slow(COSTLY)
async def test_partition(hosts: Hosts) -> None:
    partition = Partition(hosts)
    addresses = [hosts.address(host) for host in range(3)]
    every = {(a, b) for a in range(3) for b in range(3) if a != b}

    async with Victims(hosts=hosts) as victims, victims.round(datagrams, 3, addresses=addresses) as round:
        await round.all_say("ready")

        async def ways(word: str, expected: set[tuple[int, int]]) -> set[tuple[int, int]]:
            """Which ways lead through, once all that are expected have."""

            def seen() -> set[tuple[int, int]]:
                return {(s.facts["sender"], s.rank) for s in round.heard("got") if s.facts["word"] == word}

            round.tell(word)
            await round.until(lambda: seen() >= expected, within=60.0)
            return seen()

        assert await ways("first", every) == every
        partition.swallow(0, 1)
        assert await ways("one-way", every - {(0, 1)}) == every - {(0, 1)}
        partition.isolate(2)
        assert await ways("isolated", {(1, 0)}) == {(1, 0)}
        partition.heal()
        assert await ways("healed", every) == every
        round.tell("end")
        assert None not in (await round.outcomes()).values()
