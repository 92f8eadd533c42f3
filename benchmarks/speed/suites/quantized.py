"""all_reduce with 8 and 4 bits an element beside float32, over a cable of 1 Gbit/s; Linux, as root.

Two ranks, each in a network namespace; a token bucket limits the cable. Bytes are what rank 0's interface has
sent, headers of TCP and Ethernet included.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial

import numpy as np

from aiodist.group.pieces import pieces
from aiodist.group.quantized import codec_named
from aiodist.testing.hosts import Hosts
from benchmarks.harness.counters import crossed
from benchmarks.harness.crew import Crew, free_port
from benchmarks.harness.peers import AIODIST
from benchmarks.harness.run import Run, Step
from benchmarks.harness.turns import in_turns
from benchmarks.ranks.with_aiodist import AiodistPeer

WAYS = ("float32", "int8", "int4")
RATE = "1gbit"
_SIZE = 2


def quantized(run: Run) -> list[Step]:
    """The three in turns, 32 MiB."""
    mib = 2 if run.settings.quick else 32
    return [Step("quantized", f"{mib} MiB", partial(_quantized, run, mib))]


def _quantized(run: Run, mib: int) -> None:
    with Hosts(_SIZE, RATE) as hosts, Crew(AIODIST, _SIZE, enter=hosts.enter) as crew:
        crew.call("connect", port=free_port(), host=hosts.address(0))
        turns = 2 if run.settings.quick else 9
        taken = in_turns(run, WAYS, turns, lambda way: crew.do(reduced, way=way, mib=mib)[0])
    count = mib << 18
    usual = statistics.median(seconds for seconds, _ in taken["float32"])
    for way, found in taken.items():
        seconds, sent = (list(column) for column in zip(*found, strict=True))
        faster = usual / statistics.median(seconds)
        fewer = least("float32", count) / least(way, count)
        add = partial(run.results.add, "quantized", ranks=_SIZE, nbytes=mib << 20)
        add("time", way, seconds)
        add("bytes sent by a rank", way, sent, unit="B")
        add("of what the format needs", way, [sent[-1] / least(way, count)], unit="")
        add("faster", way, [faster], unit="ratio")
        add("of what bytes say", way, [faster / fewer], unit="")


def least(way: str, count: int, size: int = _SIZE) -> int:
    """Bytes that a rank has to send: of its share of the format, there and back."""
    if way == "float32":
        return 2 * (size - 1) * 4 * count // size
    codec = codec_named(way)
    cut = pieces(count, size, codec)
    return sum(sum(piece.nbytes[1:]) + (size - 1) * piece.nbytes[0] for piece in cut)


async def reduced(peer: AiodistPeer, way: str, mib: int) -> list[float]:
    """On a rank: one all_reduce → seconds, and bytes sent."""
    values = np.random.default_rng(peer.rank).standard_normal(mib << 18).astype(np.float32)
    await peer.barrier()
    await asyncio.sleep(0.05)
    before, began = crossed()[1], time.perf_counter()
    if way == "float32":
        await peer.pg.all_reduce(values)
    else:
        await peer.pg.all_reduce_quantized(values, codec=way)
    return [time.perf_counter() - began, float(crossed()[1] - before)]
