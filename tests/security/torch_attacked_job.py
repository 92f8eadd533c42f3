"""Ranks of a torch program over TCP, with an attacker on the path between each two.

`aiodist run --nproc-per-node 2 torch_attacked_job.py BACKEND MARK`: each call is attacked once, by itself.
Code of the attacker makes the file MARK. Each rank prints the calls that ended well for nobody, and "done".
"""

from __future__ import annotations

import asyncio
import pickle
import struct
import sys
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as c10d

from aiodist.transport import SocketEndpoint
from tests.security.relay import Relay

warnings.simplefilter("ignore", FutureWarning)  # names that torch gives up

BACKEND, MARK = sys.argv[1], Path(sys.argv[2])
SIZES = 1000  # objects in a list: so many that what says their sizes is no small message


class Parcel:
    """What a program sends, too large for a small message."""

    def __init__(self, rank: int) -> None:
        self.content = bytes([65 + rank]) * 100_000


class Exploit:
    """What an attacker wants to be unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (MARK,)


class Attacker:
    """Relays all connections to this process, in a loop of its own, and strikes once when told to."""

    def __init__(self) -> None:
        self.rewrite: Callable[[bytes], bytes] | None = None
        self.struck = 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __call__(self, data: bytes) -> bytes:
        if self.rewrite is None:
            return data
        changed = self.rewrite(data)
        if changed != data:
            self.struck, self.rewrite = self.struck + 1, None
        return changed

    def stand_before(self, endpoint: SocketEndpoint) -> None:
        """Have the others dial a relay in place of an endpoint."""

        async def relay() -> Relay:
            made = Relay(forth=self, back=self)
            made.target = ("127.0.0.1", endpoint.card["tcp"][1])
            return made

        endpoint.card["tcp"] = list(asyncio.run_coroutine_threadsafe(relay(), self._loop).result().address)


attacker = Attacker()
make = SocketEndpoint.__init__


def attacked(self: SocketEndpoint, *args: Any, **more: Any) -> None:
    """Make an endpoint that is reached by way of the attacker."""
    make(self, *args, **more)
    attacker.stand_before(self)


SocketEndpoint.__init__ = attacked  # type: ignore[method-assign]


def exploited(data: bytes) -> bytes:
    """A piece with an exploit in place of the first pickle in it, of the same length."""
    at = data.find(b"\x80\x04\x95")
    if at < 0 or b"Parcel" not in data[at : at + 200]:
        return data
    evil = pickle.dumps(Exploit(), protocol=2)
    return data[:at] + evil + data[at + len(evil) :]


def resized(size: int, data: bytes) -> bytes:
    """A piece in which the first of many equal sizes, of the same sum, differ."""
    one = struct.pack("<q", size)
    return data.replace(one * 4, struct.pack("<4q", size + 5, size - 5, size, size), 1)


def objects(rank: int, size: int) -> dict[str, Callable[[], object]]:
    """torch's calls on objects."""
    mine, room = Parcel(rank), [None] * size
    everybody: list[Any] = [Parcel(to) for to in range(size)]

    def message() -> None:
        if rank == 0:
            c10d.send_object_list([mine], 1)
        else:
            c10d.recv_object_list(room[:1], 0)

    return {
        "broadcast_object_list": lambda: c10d.broadcast_object_list([mine] if rank == 0 else [None], 0),
        "all_gather_object": lambda: c10d.all_gather_object(room, mine),
        "gather_object": lambda: c10d.gather_object(mine, room if rank == 0 else None, 0),
        "scatter_object_list": lambda: c10d.scatter_object_list([None], everybody if rank == 0 else None, 0),
        "send_object_list": message,
    }


def tensors(rank: int, size: int) -> dict[str, Callable[[], object]]:
    """Calls in which programs move pickles of their own, as tensors of bytes."""
    mine = torch.frombuffer(bytearray(pickle.dumps(Parcel(rank))), dtype=torch.uint8)
    ours = [torch.empty_like(mine) for _ in range(size)]
    wide = torch.zeros(size * mine.numel(), dtype=torch.uint8)
    wide.view(size, -1)[rank] = mine

    def taken(give: Callable[[], object], *given: Any) -> None:
        give()
        for one in given:
            pickle.loads(one.numpy().tobytes())  # what such a program does

    return {
        "all_gather": lambda: taken(lambda: c10d.all_gather(ours, mine), *ours),
        "all_gather_into_tensor": lambda: taken(
            lambda: c10d.all_gather_into_tensor(wide, mine), *wide.view(size, -1)
        ),
        "all_to_all_single": lambda: taken(
            lambda: c10d.all_to_all_single(wide, torch.cat([mine] * size)), *wide.view(size, -1)
        ),
        "all_reduce": lambda: taken(lambda: c10d.all_reduce(wide), *wide.view(size, -1)),
        "coalesced": lambda: taken(lambda: c10d.all_gather_coalesced([[one] for one in ours], [mine]), *ours),
    }


def sizes(rank: int, _: int) -> dict[str, Callable[[], object]]:
    """A list of so many objects that their sizes are no small message."""
    given: list[Any] = [Path("x" * 20)] * SIZES if rank == 0 else [None] * SIZES
    return {"sizes": lambda: c10d.broadcast_object_list(given, 0)}


def main() -> None:
    """Attack each call, in groups of its own."""
    size_of_one = len(pickle.dumps(Path("x" * 20)))
    for calls, rewrite in (
        (objects, exploited),
        (tensors, exploited),
        (sizes, partial(resized, size_of_one)),
    ):
        for name in calls(0, 2):
            c10d.init_process_group(BACKEND, timeout=timedelta(seconds=60))
            rank, size = c10d.get_rank(), c10d.get_world_size()
            call = calls(rank, size)[name]
            c10d.barrier()
            attacker.rewrite, struck = rewrite, attacker.struck
            try:
                call()
                for _ in range(3):  # whoever had got all hears of it here
                    c10d.barrier()
                    c10d.all_reduce(torch.ones(1))
            except c10d.DistBackendError as error:
                print(name, str(error).partition(" and ")[0], attacker.struck - struck, flush=True)
            else:
                print(name, "ended well", flush=True)
            assert not MARK.exists(), f"{name} ran an attacker's code"
            c10d.destroy_process_group()
    print("done", flush=True)


main()
