"""aiodist beside torch's gloo, Open MPI and MPICH on this machine, interleaved in one run.

Takes whoever is installed: torch; mpi4py with an MPI whose mpirun is on PATH or beside the interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aiodist.base.errors import UsageError
from aiodist.cli.bench.measures import parse_size
from benchmarks import peers
from benchmarks.bars import bars_table, evaluate
from benchmarks.curves import draw
from benchmarks.ending import run_main
from benchmarks.goals import BARS
from benchmarks.machine import facts
from benchmarks.report import doubts, processor, report
from benchmarks.results import Results
from benchmarks.run import QUICK, Run, Settings
from benchmarks.suites import SUITES, steps


def parse(argv: Sequence[str], environ: dict[str, str]) -> tuple[argparse.Namespace, Settings]:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--out", default="benchmark-results", metavar="DIR", help="where the results go")
    parser.add_argument("--only", nargs="+", default=[], choices=list(SUITES), metavar="NAME", help=_names())
    parser.add_argument("--ranks", nargs="+", type=int, metavar="N", help="of the sweeps (2 4 8; quick: 2 4)")
    parser.add_argument("--sizes", nargs="+", metavar="SIZE", help="of the sweeps: 8 64KiB 16MiB …")
    parser.add_argument("--quick", action="store_true", help="few sizes and turns: whether it all works")
    parser.add_argument("--minutes", type=float, help="skip what is left after these (30; quick: 4)")
    for flavour, title in (("openmpi", "Open MPI"), ("mpich", "MPICH")):
        variable = f"BENCHMARKS_{flavour.upper()}"
        default = environ.get(variable)
        parser.add_argument(
            f"--{flavour}", metavar="PREFIX", default=default, help=f"where {title} is ({variable})"
        )
    options = parser.parse_args(argv)
    settings = replace(QUICK if options.quick else Settings(), only=tuple(options.only))
    if options.ranks:
        if any(size < 2 for size in options.ranks):
            parser.error("--ranks: at least 2")
        settings = replace(settings, ranks=tuple(dict.fromkeys(options.ranks)))
    if options.sizes:
        try:
            settings = replace(settings, sizes=tuple(sorted({parse_size(size) for size in options.sizes})))
        except UsageError as error:
            parser.error(str(error))
    if options.minutes:
        settings = replace(settings, minutes=options.minutes)
    return options, settings


def main(argv: Sequence[str]) -> int:
    """Run everything; 1 if no figure came out, 130 after a Ctrl-C."""
    options, settings = parse(argv, dict(os.environ))
    if not sys.platform.startswith("linux"):
        print("benchmarks: they need Linux (pidfd, memfd, /proc)", file=sys.stderr)
        return 2
    folder = Path(options.out)
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
    (folder / "results.json").write_text(json.dumps(results.as_json(), indent=1) + "\n")


def _names() -> str:
    return ", ".join(SUITES)


if __name__ == "__main__":
    run_main(main)
