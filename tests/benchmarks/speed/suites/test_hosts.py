"""Several hosts: what raw sockets carry for each operation, and what is said without namespaces."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.harness.cases import Case
from benchmarks.harness.crew import free_port
from benchmarks.harness.peers import Found
from benchmarks.harness.results import Results
from benchmarks.harness.run import Run, Settings
from benchmarks.ranks.ring import RingPeer, carried
from benchmarks.speed.suites import hosts


def test_a_ring_carries_what_must_cross_each_cable() -> None:
    nbytes = 4000
    assert [carried(Case("all_reduce", nbytes), host, 4) for host in range(4)] == [(6000, 6000)] * 4
    assert [carried(Case("all_gather", nbytes), host, 4) for host in range(4)] == [(3000, 3000)] * 4


def test_a_broadcast_goes_down_a_chain() -> None:
    found = [carried(Case("broadcast", 4000), host, 3) for host in range(3)]
    assert found == [(4000, 0), (4000, 4000), (0, 4000)]


async def test_the_first_ranks_of_hosts_stream_to_each_other() -> None:
    addresses = [f"127.0.0.{host + 2}" for host in range(3)]
    port = free_port()

    def rank(number: int) -> bool:
        peer = RingPeer(number, 6)

        async def main() -> bool:
            await peer.connect(port, addresses[0], addresses)
            await peer.barrier()
            await peer.prepare({"what": "all_gather", "nbytes": 1 << 22})
            await peer.calls(2)
            await peer.barrier()
            return peer.host >= 0

        try:
            main().send(None)  # it never suspends
        except StopIteration as end:
            return bool(end.value)
        finally:
            if peer.host >= 0:
                peer.before.close()
                peer.after.close()
        raise AssertionError

    worked = await asyncio.gather(*(asyncio.to_thread(rank, number) for number in range(6)))
    assert worked == [True, False] * 3


def test_without_namespaces_it_is_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    run = Run(Found({}, []), Settings(only=("hosts",), quick=True), Results())
    run.carry_out(hosts.hosts(run))
    assert not run.results.records
    (note,) = run.results.notes
    assert note.startswith("hosts 100 Mbit/s: no network namespaces here")
