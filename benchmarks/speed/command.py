"""How fast aiodist is: beside torch's gloo, Open MPI and MPICH on this machine, interleaved in one run.

Takes whoever is installed: torch; mpi4py with an MPI whose mpirun is on PATH or beside the interpreter.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aiodist.base.errors import UsageError
from aiodist.cli.bench.measures import parse_size
from benchmarks.harness import peers
from benchmarks.harness.command import keep, parser
from benchmarks.harness.machine import facts
from benchmarks.harness.results import Results
from benchmarks.harness.run import QUICK, Run, Settings
from benchmarks.speed.bars import bars_table, evaluate
from benchmarks.speed.catalog import ALONE, COMPARED, SUITES, steps
from benchmarks.speed.curves import draw
from benchmarks.speed.goals import BARS
from benchmarks.speed.report import doubts, processor, report


def parse(argv: Sequence[str], environ: dict[str, str]) -> tuple[argparse.Namespace, Settings]:
    """The command line."""
    made = parser("speed", __doc__, "benchmark-results")
    names = f"of {', '.join(COMPARED)}; only where they are named: {', '.join(ALONE)}"
    made.add_argument("--only", nargs="+", default=[], choices=list(SUITES), metavar="NAME", help=names)
    made.add_argument("--ranks", nargs="+", type=int, metavar="N", help="of the sweeps (2 4 8; quick: 2 4)")
    made.add_argument("--sizes", nargs="+", metavar="SIZE", help="of the sweeps: 8 64KiB 16MiB …")
    made.add_argument("--minutes", type=float, help="skip what is left after these (30; quick: 4)")
    for flavour, title in (("openmpi", "Open MPI"), ("mpich", "MPICH")):
        variable = f"BENCHMARKS_{flavour.upper()}"
        default = environ.get(variable)
        made.add_argument(
            f"--{flavour}", metavar="PREFIX", default=default, help=f"where {title} is ({variable})"
        )
    options = made.parse_args(argv)
    settings = replace(QUICK if options.quick else Settings(), only=tuple(options.only))
    if options.ranks:
        if any(size < 2 for size in options.ranks):
            made.error("--ranks: at least 2")
        settings = replace(settings, ranks=tuple(dict.fromkeys(options.ranks)))
    if options.sizes:
        try:
            settings = replace(settings, sizes=tuple(sorted({parse_size(size) for size in options.sizes})))
        except UsageError as error:
            made.error(str(error))
    if options.minutes:
        settings = replace(settings, minutes=options.minutes)
    return options, settings


def main(argv: Sequence[str]) -> int:
    """Run everything; 1 if no figure came out, 130 after a Ctrl-C."""
    options, settings = parse(argv, dict(os.environ))
    folder: Path = options.out
    folder.mkdir(parents=True, exist_ok=True)
    found = peers.find({"openmpi": options.openmpi, "mpich": options.mpich})
    results = Results(facts=facts() | {"quick": settings.quick})
    print(f"measuring {', '.join(found.peers)}", file=sys.stderr)
    for line in found.missing:
        print(f"without {line}", file=sys.stderr)
        results.note(f"without {line}")
    run = Run(found, settings, results)
    code = 0
    try:
        run.carry_out(steps(run))
    except KeyboardInterrupt:
        results.note("interrupted: the figures are not complete")
        print("interrupted; what was measured is written", file=sys.stderr)
        code = 130
    results.facts["load_after"] = os.getloadavg()[0]
    write(results, found, folder)
    print(f"{processor(results.facts)}\n\n{bars_table(evaluate(results, BARS))}")
    if busy := doubts(results):
        print(f"\n{busy}")
    print(f"\n{len(results.records)} figures are in {folder}/")
    return code or int(not results.records)


def write(results: Results, found: peers.Found, folder: Path) -> None:
    """The folder's files."""
    pictures = draw(results, folder)
    text = report(results, list(found.peers.values()))
    text += "".join(f"\n![{name}]({name})\n" for name in pictures)
    (folder / "results.md").write_text(text)
    keep(folder / "results.json", results.as_json())
