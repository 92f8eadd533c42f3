"""all_reduce with 8 and 4 bits an element beside float32, over a cable of a known rate; Linux, as root.

    python -m benchmarks.quantized [--rate 1gbit] [--mib 32] [--samples 9] [--json FILE]

Two ranks, each in a network namespace; a token bucket limits the cable. The three take turns, and the table
has medians. Bytes are what rank 0's interface has sent, headers of TCP and Ethernet included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.group.pieces import pieces
from aiodist.group.quantized import codec_named
from aiodist.testing.hosts import Hosts
from benchmarks.counters import crossed
from benchmarks.ending import run_main
from benchmarks.machine import facts

WAYS = ("float32", "int8", "int4")


def main(argv: Sequence[str]) -> int:
    """Start two ranks in namespaces, and print a table."""
    parser = argparse.ArgumentParser("python -m benchmarks.quantized", description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="1gbit", help="of the cable, as tc writes it")
    parser.add_argument("--mib", type=int, default=32, help="of float32")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.rank is not None:
        asyncio.run(rank(options))
        return 0
    words = [sys.executable, "-m", "benchmarks.quantized", *argv]
    try:
        with Hosts(2, options.rate) as hosts:
            env = {**os.environ, **hosts.env, "WORLD_SIZE": "2"}
            ranks = [
                subprocess.Popen([*hosts.enter(i), *words, "--rank", str(i)], env={**env, "RANK": str(i)})
                for i in range(2)
            ]
            return max(process.wait() for process in ranks)
    except unittest.SkipTest as reason:
        print(f"benchmarks.quantized: {reason}", file=sys.stderr)
        return 1


async def rank(options: argparse.Namespace) -> None:
    """Measure on one rank; rank 0 prints."""
    count = options.mib << 18
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    sent: dict[str, int] = {}
    async with dist.init_process_group() as pg:
        tensor = np.random.default_rng(pg.rank).standard_normal(count).astype(np.float32)
        for sample in range(options.samples + 1):
            for way in WAYS:
                values = tensor.copy()
                await pg.barrier()
                await asyncio.sleep(0.05)
                before, began = crossed()[1], time.perf_counter()
                await _reduce(pg, way, values)
                seconds = time.perf_counter() - began
                if sample:
                    took[way].append(seconds)
                    sent[way] = crossed()[1] - before
        if pg.rank == 0:
            _print(options, count, took, sent)


async def _reduce(pg: dist.ProcessGroup, way: str, values: Any) -> None:
    if way == "float32":
        await pg.all_reduce(values)
    else:
        await pg.all_reduce_quantized(values, codec=way)


def least(way: str, count: int, size: int = 2) -> int:
    """Bytes that a rank has to send: of its share of the format, there and back."""
    if way == "float32":
        return 2 * (size - 1) * 4 * count // size
    codec = codec_named(way)
    cut = pieces(count, size, codec)
    return sum(sum(piece.nbytes[1:]) + (size - 1) * piece.nbytes[0] for piece in cut)


def _print(
    options: argparse.Namespace, count: int, took: dict[str, list[float]], sent: dict[str, int]
) -> None:
    usual = statistics.median(took["float32"])
    lines: list[dict[str, Any]] = []
    for way in WAYS:
        seconds = statistics.median(took[way])
        faster, fewer = usual / seconds, least("float32", count) / least(way, count)
        lines.append(
            {
                "way": way,
                "seconds": seconds,
                "sent": sent[way],
                "least": least(way, count),
                "over": sent[way] / least(way, count),
                "faster": faster,
                "of_what_bytes_say": faster / fewer,
            }
        )
    machine = facts()
    print(f"2 ranks, {options.rate}, {options.mib} MiB of float32; {machine['cpu']}\n")
    print(
        "| on the way | time | bytes sent by a rank | of what the format needs | faster | of what bytes say |"
    )
    print("|---|---|---|---|---|---|")
    for line in lines:
        print(
            f"| {line['way']} | {line['seconds'] * 1e3:.1f} ms | {line['sent'] / 1e6:.2f} MB "
            f"| {line['over']:.3f} | {line['faster']:.2f} × | {line['of_what_bytes_say']:.2f} |"
        )
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
