"""`aiodist <command> …`: finds the command's module, and turns errors into one line and an exit code.

Exit codes: the command's own; 2 for a command line without meaning, 1 for what the world did.
Modules are imported only when their command is used: the launcher starts fast.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from aiodist.base.errors import AiodistError, UsageError
from aiodist.base.sanitize import one_line
from aiodist.cli.show import show
from aiodist.cli.version import installed_version

_LONGEST = 4000  # characters of an error; what another host said may be in it

COMMANDS = {
    "run": "start a job's workers on this node (torchrun's flags)",
    "launch": "start a job on several hosts, from this one",
    "env": "show which rank and meeting point aiodist detects here, and why",
    "store": "run a standalone rendezvous server",
    "jobs": "list the jobs of this host",
    "top": "show what the ranks of a job do, live",
    "dashboard": "show the ranks of a job on a web page, live",
    "metrics": "give Prometheus or OpenTelemetry the figures of a job",
    "stacks": "show the stacks and tasks of a job's ranks",
    "sim": "predict a script's communication on any number of ranks",
    "bench": "measure aiodist on this machine",
    "trace": "write what a job's ranks did last, for ui.perfetto.dev",
    "explain": "say why a job stands still, or what happened in a job that has ended",
    "doctor": "say what this machine has and lacks, and how to repair it",
    "completion": "print what makes bash, zsh or fish complete these words",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments after the program's name; None: this process's.

    Returns:
        The exit code.
    """
    _open_standard()
    args = list(sys.argv[1:] if argv is None else argv)
    if sys.platform == "win32":
        return _fail("aiodist", "Windows is not supported; use Linux, macOS or WSL", 2)
    if args[:1] == ["help"] and len(args) == 2:
        args = [args[1], "--help"]
    if not args or args[0] in ("-h", "--help", "help"):
        if args:
            return _answer(_usage())
        print(_usage(), file=sys.stderr)
        return 2
    if args[0] in ("-V", "--version"):
        found = installed_version()
        return _answer(f"aiodist {found}" if found else "aiodist (not installed)")
    name = args[0]
    if name not in COMMANDS:
        return _fail("aiodist", _no_command(name), 2)
    command: Callable[[list[str]], int] = import_module(f"aiodist.cli.commands.{name}").main
    try:
        return command(args[1:])
    except UsageError as error:
        return _fail(f"aiodist {name}", str(error), 2)
    except AiodistError as error:
        return _fail(f"aiodist {name}", str(error), 1)
    except KeyboardInterrupt:
        return 130


def _open_standard() -> None:
    """Open /dev/null for what the shell has closed (`>&-`), or what is opened next would be in its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _no_command(name: str) -> str:
    text = f"there is no command {name!r}; there are: {', '.join(COMMANDS)}"
    if name.endswith(".py"):
        return f"{text}. Did you mean 'aiodist run {name}'?"
    close = difflib.get_close_matches(name, COMMANDS, 1, cutoff=0.65)
    return f"{text}. Did you mean 'aiodist {close[0]}'?" if close else text


def _answer(text: str) -> int:
    try:
        show(text)
    except AiodistError as error:
        return _fail("aiodist", str(error), 1)
    return 0


def _fail(who: str, text: str, code: int) -> int:
    print(f"{who}: error: {one_line(text, _LONGEST)}", file=sys.stderr)
    return code


def _usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    example = "example: aiodist run --nproc-per-node 4 train.py"
    return f"usage: aiodist COMMAND …\n\n{rows}\n\n'aiodist COMMAND --help' says more.\n{example}"
