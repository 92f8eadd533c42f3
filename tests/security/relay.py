"""An attacker on the path: relays a connection's handshake untouched, and does what it likes to the rest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from aiodist.net.wire import handshake as wire

Rewrite = Callable[[bytes], bytes]
HOST = "127.0.0.1"


def untouched(data: bytes) -> bytes:
    """Passes on what comes."""
    return data


class Relay:
    """Listens beside a target, and leads there. Close it.

    Args:
        forth: what it makes of each piece from the dialer, behind the handshake.
        back: likewise, of what the target says.

    Attributes:
        address: where to dial instead of the target.
        target: where that leads; may be set later.
        connections: so far.
        seen: all that passed behind handshakes, as it was sent: from dialers, from targets.
    """

    def __init__(self, forth: Rewrite = untouched, back: Rewrite = untouched) -> None:
        self.forth, self.back = forth, back
        self.target: tuple[str, int] = ("", 0)
        self.connections = 0
        self.seen = (bytearray(), bytearray())
        self._listener = socket.create_server((HOST, 0))
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._loop = asyncio.get_running_loop()
        self._tasks = {self._loop.create_task(self._accept())}
        self._socks: set[socket.socket] = {self._listener}

    async def aclose(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sock in self._socks:
            sock.close()

    async def _accept(self) -> None:
        while True:
            near, _ = await self._loop.sock_accept(self._listener)
            self.connections += 1
            far = socket.socket()
            self._socks |= {near, far}
            for sock in (near, far):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(far, self.target)
            for source, sink, way in ((near, far, 0), (far, near, 1)):
                self._tasks.add(self._loop.create_task(self._carry(source, sink, way)))

    async def _carry(self, source: socket.socket, sink: socket.socket, way: int) -> None:
        left, head = 2, b""  # messages of the handshake that this side has yet to say
        try:
            while data := await self._loop.sock_recv(source, 1 << 20):
                if left:
                    head += data
                    data = b""
                    while left and len(head) >= wire.PREFIX.size:
                        end = wire.PREFIX.size + wire.PREFIX.unpack_from(head)[3]
                        if len(head) < end:
                            break
                        await self._loop.sock_sendall(sink, head[:end])
                        head, left = head[end:], left - 1
                    if left or not head:
                        continue
                    data, head = head, b""
                self.seen[way].extend(data)
                await self._loop.sock_sendall(sink, (self.forth, self.back)[way](data))
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        finally:
            self._loop.remove_reader(source.fileno())
