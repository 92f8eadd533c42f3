"""What every command has: options, the file of results, parts of pages, and its end by a signal."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
END = "<!-- end of figures -->"


def parser(question: str, about: str | None, out: str) -> argparse.ArgumentParser:
    """The options that every command has.

    Args:
        question: the word behind `python -m benchmarks`.
        about: what it does.
        out: where the figures go by default.
    """
    made = argparse.ArgumentParser(f"python -m benchmarks {question}", description=about)
    made.add_argument("--quick", action="store_true", help="little of everything: whether it all works")
    made.add_argument("--out", type=Path, default=Path(out), metavar="PATH", help=f"where figures go ({out})")
    return made


def dispatch(commands: Mapping[str, str], about: str | None, argv: Sequence[str]) -> int:
    """Call the `main` of the module that a first word names; what there is, and 2, where it names none."""
    name = argv[0] if argv else ""
    if name not in commands:
        asked = name in ("-h", "--help")
        print(about, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    code: int = import_module(commands[name]).main(argv[1:])
    return code


def kept(out: Path) -> dict[str, Any]:
    """The results of earlier runs; those of parts that are not run again stay."""
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    return found


def keep(out: Path, results: Any) -> None:
    """Write results as JSON."""
    out.write_text(json.dumps(results, indent=1) + "\n")


def begin(command: str) -> str:
    """The mark before figures of a page, which names the command that writes them."""
    return f"<!-- figures: written by {command} -->"


def put_into(page: Path, text: str, command: str) -> None:
    """Write what a command has found between the marks of a page."""
    before, first, rest = page.read_text().partition(begin(command))
    _, last, after = rest.partition(END)
    if not first or not last:
        raise SystemExit(f"{page} has no marks {begin(command)} … {END}")
    page.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}")


def run_main(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Exit with what `main` returns for the command line; with 130 if a signal ends it.

    SIGTERM ends it as Ctrl-C does, so that it leaves nothing behind. A shell has what it starts in the
    background ignore SIGINT; here that ends it, too.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
