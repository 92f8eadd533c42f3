"""The limit of cables between hosts: raw sockets from each host to the next carry what an operation must.

One rank of each host sends to the next host and receives from the one before, both at the same time, as much
as a ring that reduces on each host first must; for a broadcast a chain. Nobody waits for what it hands on.
"""

from __future__ import annotations

import socket
from typing import Any

from benchmarks.harness.cases import Case
from benchmarks.ranks.base import LOOPBACK, Peer
from benchmarks.ranks.sockets import dial, stream


class RingPeer(Peer):
    """See `Peer`. Ranks of one host follow each other; the first of each works."""

    before: socket.socket
    after: socket.socket
    host = hosts = -1

    async def connect(self, port: int, host: str = LOOPBACK, addresses: list[str] | None = None) -> None:
        addresses = addresses or []
        each = self.size // len(addresses)
        if self.rank % each:
            return
        self.host, self.hosts = self.rank // each, len(addresses)
        with socket.create_server((addresses[self.host], port)) as listener:
            listener.settimeout(30)
            self.after = dial(addresses[(self.host + 1) % self.hosts], port)
            self.before, _ = listener.accept()
        for sock in (self.before, self.after):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)

    async def barrier(self) -> None:
        if self.host < 0:
            return
        for _ in range(self.hosts):  # after so many steps everybody's word has come round
            stream(self.after, memoryview(b"?"), self.before, memoryview(bytearray(1)))

    async def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        wanted = Case(**case)
        sent, received = carried(wanted, self.host, self.hosts) if self.host >= 0 else (0, 0)
        self.sent, self.received = memoryview(bytes(sent)), memoryview(bytearray(received))
        self.once = self._exchange
        return {}

    async def drop(self) -> None:
        self.sent = self.received = memoryview(b"")
        self.once = None

    def _exchange(self) -> None:
        if self.host >= 0:
            stream(self.after, self.sent, self.before, self.received)


def carried(case: Case, host: int, hosts: int) -> tuple[int, int]:
    """Bytes that a host sends to the next and receives from the one before."""
    match case.what:
        case "all_reduce":
            both = 2 * (hosts - 1) * case.nbytes // hosts
            return both, both
        case "all_gather":
            both = (hosts - 1) * case.nbytes // hosts
            return both, both
        case "broadcast":
            return case.nbytes * (host < hosts - 1), case.nbytes * (host > 0)
    raise ValueError(case.what)
