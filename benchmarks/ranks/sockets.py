"""The TCP limit: two raw sockets that stream an operation's bytes both ways at the same time."""

from __future__ import annotations

import select
import socket
import time
from typing import Any

from benchmarks.harness.cases import Case
from benchmarks.ranks.base import LOOPBACK, Peer

_PIECE = 1 << 20


class SocketsPeer(Peer):
    """Two ranks, one connection over loopback; each sends as much as an all_reduce of two ranks must."""

    sock: socket.socket
    listener: socket.socket | None = None

    async def connect(self, port: int, host: str = LOOPBACK) -> None:
        if self.rank == 0:
            with socket.create_server((host, port)) as listener:
                listener.settimeout(30)
                self.sock, _ = listener.accept()
        else:
            self.sock = dial(host, port)
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
        stream(self.sock, self.sent, self.sock, self.received)


def stream(there: socket.socket, sent: memoryview, here: socket.socket, received: memoryview) -> None:
    """Send to one socket and receive from another, or the same, at the same time; neither blocks."""
    poll = select.poll()
    while sent or received:
        stuck = True
        if sent:
            try:
                sent = sent[there.send(sent[:_PIECE]) :]
                stuck = False
            except BlockingIOError:
                pass
        if received:
            try:
                count = here.recv_into(received[:_PIECE])
                if not count:
                    raise EOFError("the other rank has gone")
                received = received[count:]
                stuck = False
            except BlockingIOError:
                pass
        if stuck:
            events: dict[socket.socket, int] = {}
            for sock, event, left in ((there, select.POLLOUT, sent), (here, select.POLLIN, received)):
                if left:
                    events[sock] = events.get(sock, 0) | event
            for sock in {there, here}:
                poll.register(sock, events.get(sock, 0))
            poll.poll()


def dial(host: str, port: int) -> socket.socket:
    """A connection to somebody who will listen soon."""
    until = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((host, port), 30)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
