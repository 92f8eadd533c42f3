"""One rank: takes the driver's orders until it is told to end, or the driver is gone.

`python -m benchmarks.ranks PEER SOCKET RANK SIZE`. Between orders it waits in the kernel for the next. With
'all' for RANK this process imports what they need, forks them all, and waits for their ends.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Coroutine
from typing import Any

import aiodist as dist
from benchmarks.harness.link import AbsentError, pack, receive, receive_async
from benchmarks.ranks.base import LoopPeer, Peer

PEERS = {
    "aiodist": ("with_aiodist", "AiodistPeer"),
    "gloo": ("with_gloo", "GlooPeer"),
    "mpi": ("with_mpi", "MpiPeer"),
    "aiodist-mpi": ("with_aiodist_mpi", "AiodistMpiPeer"),
    "torch": ("with_torch", "TorchPeer"),
    "passes": ("passes", "PassesPeer"),
    "sockets": ("sockets", "SocketsPeer"),
    "ring": ("ring", "RingPeer"),
    "streams": ("streams", "StreamsPeer"),
    "streams-tcp": ("streams", "TcpStreamsPeer"),
    "aiodist-store": ("stores", "AiodistStore"),
    "torch-store": ("stores", "TorchStore"),
}


def main() -> None:
    """Serve the driver."""
    kind, path, rank, size = sys.argv[1:5]
    module, name = PEERS[kind]
    found = getattr(importlib.import_module(f"benchmarks.ranks.{module}"), name)
    if kind == "torch-store":
        importlib.import_module("torch.distributed")
    run = dist.run if issubclass(found, LoopPeer) else None  # loaded before the fork
    if rank == "all":
        for number in range(int(size)):
            if not os.fork():
                rank = str(number)
                break
        else:
            for _ in range(int(size)):
                os.wait()
            return
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    threading.Thread(target=_die_with_driver, args=(sock,), daemon=True).start()
    peer: Peer = found(int(rank), int(size))
    sock.sendall(
        pack({"rank": peer.rank, "size": peer.size, "pid": os.getpid(), "versions": peer.versions()})
    )
    if run is not None:
        sock.setblocking(False)
        run(_serve(peer, sock))
    else:
        while _finish(_obey(peer, receive(sock), sock)):
            pass


async def _serve(peer: Peer, sock: socket.socket) -> None:
    while await _obey(peer, await receive_async(sock), sock):
        pass


async def _obey(peer: Peer, order: dict[str, Any], sock: socket.socket) -> bool:
    """Carry out one order and answer it; False after the last one."""
    name = order.pop("do")
    try:
        answer = {"result": await getattr(peer, name)(**order)} if name != "end" else {"result": None}
    except AbsentError as absent:
        answer = {"absent": str(absent)}
    except Exception:
        answer = {"error": traceback.format_exc()}
    data = pack(answer)
    if sock.getblocking():
        sock.sendall(data)
    else:
        await asyncio.get_running_loop().sock_sendall(sock, data)
    return bool(name != "end")


def _finish(order: Coroutine[Any, Any, bool]) -> bool:
    """Run a coroutine that never suspends."""
    try:
        order.send(None)
    except StopIteration as end:
        return bool(end.value)
    raise RuntimeError("a blocking peer suspended")


def _die_with_driver(sock: socket.socket) -> None:
    """End this process at once, from a thread, when the driver has gone, whatever it is doing."""
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    os._exit(3)


if __name__ == "__main__":
    main()
