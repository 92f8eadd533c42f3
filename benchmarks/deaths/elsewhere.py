"""Rows 14 to 19: what the tests of the store, of security and of the parsers count by themselves."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.deaths.figures import Figures
from benchmarks.deaths.scale import Scale
from benchmarks.harness.command import ROOT

Row = Callable[[Scale], Coroutine[Any, Any, list[Figures]]]


async def store_kills(scale: Scale) -> list[Figures]:
    """Row 14: the store is killed under load and started again, over and over."""
    from tests.rendezvous.durability_load import main

    clients, kills = scale.pick(2, 4, 200), scale.pick(2, 5, 100)
    figures = Figures(14, f"{clients} clients that write", "–")
    scale.step(14, f"{kills} kills of a store with {clients} clients")
    found = await main(clients=clients, kills=kills)
    figures.repeats = kills
    figures.checked = found["acknowledged"]
    figures.wrong = found["lost"] + found["applied_twice"]
    figures.notes.append(f"{found['acknowledged']:,} writes acknowledged, {found['lost']} lost")
    figures.notes.append(f"{found['applied_twice']} applied twice")
    if errors := found["client_errors"]:
        figures.problem(f"clients got errors: {errors}")
    return [figures]


async def silent_connections(scale: Scale) -> Figures:
    """Row 19, its second half: thousands of connections that say nothing, beside a job that works."""
    from tests.transport.silent_load import main

    connections = scale.pick(100, 1000, 5000)
    figures = Figures(19, f"{connections:,} silent connections", "2")
    scale.step(19, figures.what)
    found = await asyncio.to_thread(main, connections)
    figures.repeats = 1
    figures.notes.append(f"operations take {found['ratio_p50']:.2f} times as long in the median")
    figures.notes.append(f"a rank's memory grew by {found['growth']} KiB")
    return figures


async def fuzz(scale: Scale) -> list[Figures]:
    """Row 19: bytes that are not this protocol, for every parser."""
    inputs = scale.pick(2_000, 20_000, 1_000_000)
    figures = Figures(19, "fuzzed frames, local messages, messages, objects", "–")
    done = await _run(scale, 19, "tests.fuzz", "--inputs", str(inputs), "--seed", str(scale.seed))
    figures.repeats = inputs
    if done.returncode:
        figures.problem((done.stdout + done.stderr)[-2000:])
    return [figures, await silent_connections(scale)]


def suite(row: int, what: str, *paths: str) -> Row:
    """A row that tests cover: run them, count them."""

    async def run(scale: Scale) -> list[Figures]:
        figures = Figures(row, what, "–")
        done = await _run(scale, row, "pytest", "-q", "-m", "", "-p", "no:cacheprovider", *paths)
        counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|skipped)", done.stdout)}
        figures.repeats = counts.get("passed", 0)
        figures.notes.append(f"the tests of {', '.join(path.removeprefix('tests/') for path in paths)}")
        if skipped := counts.get("skipped"):
            figures.notes.append(f"{skipped} skipped")
        if done.returncode:
            figures.problem(done.stdout[-3000:])
        return [figures]

    return run


async def _run(scale: Scale, row: int, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    scale.step(row, f"{module} {' '.join(words)}")
    command = [sys.executable, "-m", module, *words]
    return await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True)
