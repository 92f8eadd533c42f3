"""`aiodist sim SCRIPT`: a script's communication on any number of ranks, over a network that you describe."""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from aiodist.base.environment.files import write_file
from aiodist.base.errors import AiodistError, UsageError
from aiodist.cli.parser import Parser
from aiodist.cli.show import show


def main(argv: Sequence[str]) -> int:
    """Simulate, and print what was found."""
    parser = Parser("aiodist sim", description=__doc__, example="aiodist sim train.py --ranks 64")
    parser.add_argument(
        "script", metavar="SCRIPT", nargs="?", help="the script; its own arguments follow last, after --"
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="number of ranks (default: those of the network's hosts)"
    )
    parser.add_argument(
        "--network",
        metavar="FILE|WORDS",
        help="a TOML file, or hosts=512x8,link=1Gbit/s:50us,local=20GB/s:2us (a host a rank, 10 Gbit/s)",
    )
    parser.add_argument(
        "--straggler",
        action="append",
        default=[],
        metavar="RANK:FACTOR",
        help="17:1.2: rank 17 computes 1.2 times as long",
    )
    parser.add_argument(
        "--compute",
        default="none",
        metavar="none|measured|FACTOR",
        help="how much time real computing takes (none)",
    )
    parser.add_argument(
        "--constants", metavar="FILE", help="costs of the software, as --calibrate wrote them"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="measure these costs here, and write them to -o; no SCRIPT"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write a trace for ui.perfetto.dev")
    parser.add_argument("--trace-ranks", metavar="RANKS", default="0-15", help="ranks in the trace (0-15)")
    parser.add_argument("--print-ranks", metavar="RANKS", default="0", help="ranks whose output is shown (0)")
    parser.add_argument(
        "--json", action="store_true", help="for machines; what the script prints goes to stderr"
    )
    cut = argv.index("--") if "--" in argv else len(argv)
    args, arguments = parser.parse_args(list(argv[:cut])), list(argv[cut + 1 :])
    if args.calibrate:
        if args.script is not None:
            raise UsageError("--calibrate runs no script", hint="Give it nothing but -o FILE")
        return _calibrate(args.output)
    if args.script is None:
        raise UsageError("no script is named", hint="For example aiodist sim train.py --ranks 64")
    from aiodist.observe.trace import trace
    from aiodist.sim.constants import Constants, load
    from aiodist.sim.engine import SimEngine
    from aiodist.sim.ledger import SimLedger
    from aiodist.sim.network import network
    from aiodist.sim.program import FailedError, run_script
    from aiodist.sim.report import facts, table
    from aiodist.sim.world import SimWorld

    found = network(args.network, args.ranks, args.straggler)
    engine = SimEngine(_factor(args.compute))
    traced = _ranks(args.trace_ranks, found.size) if args.output else frozenset()
    ledger = SimLedger(traced)
    constants = load(args.constants) if args.constants else Constants()
    world = SimWorld(found, constants, engine, ledger)
    wall, began = time.time(), time.perf_counter()
    reported = began

    def tick() -> None:
        nonlocal reported
        now = time.perf_counter()
        if now - reported > 1 and sys.__stderr__ is not None and sys.__stderr__.isatty():
            reported = now
            print(
                f"\r{ledger.operations} operations, {engine.now:.3f} s  ",
                end="",
                file=sys.__stderr__,
                flush=True,
            )

    engine.tick = tick
    try:
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            run_script(world, args.script, arguments, _ranks(args.print_ranks, found.size))
    except FailedError as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, SystemExit | AiodistError):
            traceback.print_exception(error.__cause__)
        raise
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    made = facts(world, time.perf_counter() - began, memory)
    show(json.dumps(made, indent=1) if args.json else table(made))
    if args.output:
        argv_of = [args.script, *arguments]
        job = ledger.job("simulated", found.size, world.hosts, engine.now, argv_of, wall)
        write_file(args.output, json.dumps(trace(job), allow_nan=False))
    return 0


def _calibrate(output: str | None) -> int:
    """Have two ranks measure what the software costs here; the file that `--constants` reads, or its text."""
    from aiodist.launch.agent import run  # it forks: no module with threads is imported before
    from aiodist.launch.config import LaunchConfig
    from aiodist.sim.constants import load, save, text

    with tempfile.TemporaryDirectory(prefix="aiodist-sim-") as folder:
        made = str(Path(folder) / "constants.json")
        command = (sys.executable, "-m", "aiodist.sim.calibration", made)
        code = run(LaunchConfig(command=command, nproc=2, prefix=""))
        if code:
            return code
        found = load(made)
    if output:
        save(found, output)
    else:
        show(text(found))
    return 0


def _factor(text: str) -> float:
    if text in ("none", "measured"):
        return 1.0 if text == "measured" else 0.0
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if not 0 <= factor < 1e9:
        raise UsageError(f"--compute {text} is not a factor", hint="Write none, measured, or for example 0.5")
    return factor


def _ranks(text: str, size: int) -> frozenset[int]:
    """'0-3,17' → those of them that there are."""
    found: set[int] = set()
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"{text!r} names no ranks", hint="Write for example 0-3,17")
        found.update(range(int(first), min(size, (int(last) if dash else int(first)) + 1)))
    return frozenset(rank for rank in found if rank < size)
