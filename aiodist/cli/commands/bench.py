"""`aiodist bench`: how fast aiodist is here, on some processes of this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiodist.base.errors import UsageError
from aiodist.base.terminal import painter, takes_colour
from aiodist.cli.commands.run import workers_per_node
from aiodist.cli.parser import Parser
from aiodist.launch.config import LaunchConfig

_BUDGET, _QUICK = 0.25, 0.05  # seconds for one line of the table
_SAMPLE_SECONDS = 0.3  # seconds for which the machine is looked at first, where somebody waits for it


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 if every result was right."""
    live = "stdout" if sys.stdout.isatty() else "stderr" if sys.stderr.isatty() else ""
    stdout = takes_colour(sys.stdout.isatty(), os.environ)
    config = make_config(argv, live=live, colour=stdout)
    if live:
        from aiodist.base.environment.processor_load import disturbance_now, doubt

        seen = disturbance_now(_SAMPLE_SECONDS)
        if seen and (why := doubt(seen)):
            paint = painter(takes_colour(sys.stderr.isatty(), os.environ))
            print(f"aiodist bench: {paint('yellow', why)}", file=sys.stderr, flush=True)
    from aiodist.launch.agent import run

    return run(config)


def make_config(argv: Sequence[str], *, live: str, colour: bool = False) -> LaunchConfig:
    """The job that a command line asks for.

    Args:
        argv: after 'bench'.
        live: where a progress line can be drawn: 'stdout', 'stderr' or nowhere, ''.
        colour: standard output takes colours.

    Raises:
        UsageError: a command line without meaning.
        SystemExit: --help (0).
    """
    # NumPy is behind these names, and the launcher starts without it.
    from aiodist.cli.bench.cases import SWEPT
    from aiodist.cli.bench.measures import SIZES, parse_size

    parser = Parser("aiodist bench", description=__doc__)
    parser.add_argument(
        "-n", "--nproc-per-node", "--nproc_per_node", default="2", metavar="N", help="ranks (2)"
    )
    parser.add_argument("--sizes", nargs="+", metavar="SIZE", help="8 64KiB 16MiB … (8 B to 256 MiB)")
    parser.add_argument("--only", nargs="+", choices=SWEPT, metavar="NAME", help=", ".join(SWEPT))
    parser.add_argument("--quick", action="store_true", help="up to 16 MiB, fewer repeats")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    args = parser.parse_args(list(argv))
    default = tuple(size for size in SIZES if size <= 16 << 20) if args.quick else SIZES
    options: dict[str, Any] = {
        "kinds": args.only or SWEPT,
        "sizes": sorted({parse_size(text) for text in args.sizes}) if args.sizes else default,
        "budget": _QUICK if args.quick else _BUDGET,
        "live": live,
        "colour": colour,
        "json": str(Path(args.json).absolute()) if args.json else None,
    }
    if args.json:
        _check_place(Path(args.json).absolute(), args.json)
    return LaunchConfig(
        command=(sys.executable, "-m", "aiodist.cli.bench", json.dumps(options)),
        nproc=workers_per_node(args.nproc_per_node, os.environ),
        prefix="",
    )


def _check_place(path: Path, name: str) -> None:
    """Refuse, before minutes of measuring, a file that cannot be written."""
    if not os.path.isdir(path.parent):
        raise UsageError(f"--json {name}: there is no such folder, or it is another user's")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise UsageError(f"--json {name} cannot be written", hint="Name a file in a folder of yours")
