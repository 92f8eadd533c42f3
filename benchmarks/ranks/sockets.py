"""The TCP limit: two raw sockets that stream an operation's bytes both ways at the same time."""

from __future__ import annotations

import select
import socket
from typing import Any

from aiodist.bench.cases import Case
from benchmarks.ranks.base import Peer

_PIECE = 1 << 20


class SocketsPeer(Peer):
    """Two ranks, one connection over loopback; each sends as much as an all_reduce of two ranks must."""

    sock: socket.socket
    listener: socket.socket | None = None

    async def connect(self, port: int) -> None:
        if self.rank == 0:
            with socket.create_server(("127.0.0.1", port)) as listener:
                listener.settimeout(30)
                self.sock, _ = listener.accept()
        else:
            self.sock = _dial(port)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)

    async def disconnect(self) -> None:
        self.sock.close()

    async def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        wanted = Case(**case)
        if wanted.what != "all_reduce" or self.size != 2:
            return {"absent": "only for all_reduce of two ranks"}
        self.sent = memoryview(bytes(wanted.nbytes))
        self.received = memoryview(bytearray(wanted.nbytes))
        self.once = self._exchange
        return {}

    async def drop(self) -> None:
        self.sent = self.received = memoryview(b"")
        self.once = None

    def _exchange(self) -> None:
        sock, sent, received = self.sock, self.sent, self.received
        poll = select.poll()
        poll.register(sock)
        while sent or received:
            stuck = True
            if sent:
                try:
                    sent = sent[sock.send(sent[:_PIECE]) :]
                    stuck = False
                except BlockingIOError:
                    pass
            if received:
                try:
                    count = sock.recv_into(received[:_PIECE])
                    if not count:
                        raise EOFError("the other rank has gone")
                    received = received[count:]
                    stuck = False
                except BlockingIOError:
                    pass
            if stuck:
                poll.modify(sock, (select.POLLOUT if sent else 0) | (select.POLLIN if received else 0))
                poll.poll()


def _dial(port: int) -> socket.socket:
    import time

    until = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 30)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
