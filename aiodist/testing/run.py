"""One run of an `@spmd` test: from its arguments to its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import unittest
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiodist.base.errors import UsageError
from aiodist.testing import measuring, terminal, warned
from aiodist.testing.hosts import Hosts
from aiodist.testing.options import SpmdOptions
from aiodist.testing.outcome import RanksFailed, check
from aiodist.testing.parcel import pack
from aiodist.testing.plan import RankPlan, Reporting, own_kind, pickled, places_of
from aiodist.testing.ranks import WORKER, launch
from aiodist.testing.terminal import Terminal

OVERRIDING = ("world_size", "transport", "timeout", "backend")


@dataclass(frozen=True, slots=True)
class Around:
    """What surrounds the tests: pytest, if it runs them.

    Args:
        reporting: how it shows failures; None: it does not.
        debugging: a context in which a debugger has the terminal.
        why_not: why there is no terminal for it; '' where there is one.
    """

    reporting: Reporting | None = None
    debugging: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    why_not: str = ""


def run(
    function: Callable[..., Any], options: SpmdOptions, arguments: Mapping[str, Any], *itself: Any
) -> None:
    """Run a function on ranks, and raise what the test's outcome is; nothing where it passed."""
    name = function.__qualname__
    if asyncio._get_running_loop() is not None:
        raise UsageError(f"{name} was called where an event loop runs", hint="Call it from a plain function")
    options = replace(options, **{one: arguments[one] for one in OVERRIDING if one in arguments})
    options.check(name)
    plugin = sys.modules.get("aiodist.testing.plugin")
    around = Around() if plugin is None else plugin.around()
    own = {one: kind for one, value in arguments.items() if (kind := own_kind(value)) is not None}
    with tempfile.TemporaryDirectory(prefix="aiodist-spmd-") as made, contextlib.ExitStack() as kept:
        folder = Path(made)
        places: list[str] = []
        env = {"AIODIST_TRANSPORT": options.transport, **options.env}
        if options.hosts > 1:
            hosts = kept.enter_context(Hosts(options.hosts))
            size = options.world_size
            places = [hosts.place(rank * options.hosts // size) for rank in range(size)]
            env = {**hosts.env, **env}
        screen = _terminal(folder, around)
        plan = RankPlan(
            function.__module__,
            name,
            places_of(function),
            tuple(sys.path),
            arguments={
                one: pickled(value, f"the argument {one!r}", name)
                for one, value in arguments.items()
                if one not in own
            },
            own=own,
            itself=_itself(*itself, test=name) if itself else None,
            backend=options.backend,
            reporting=around.reporting,
            coverage=measuring.measured(),
            terminal=screen.path,
            breaks=terminal.breaks(),
            filters=warned.filters(),
        )
        doing: list[str] = []
        try:
            outcomes = asyncio.run(
                launch(
                    [*WORKER, str(plan.write(folder))],
                    options.world_size,
                    timeout=options.timeout,
                    env=env,
                    places=places,
                    folder=folder,
                    say=lambda rank, line: _say(screen, rank, line),
                    terminal=screen,
                    broken_off=doing.extend,
                )
            )
        except BaseException as error:
            if _is_limit(error):
                did = "what the ranks did:" if doing else "the ranks were about to start"
                raise RanksFailed(str(error), did, doing) from None
            if doing:
                _tell(doing, around)
            raise
        finally:
            measuring.take_over(folder)
            screen.say_rest()
        failed = warned.reported(folder, options.world_size)
        check(outcomes, options.exits, reported=True)
        if failed is not None:
            raise failed


def _is_limit(error: BaseException) -> bool:
    """Whether pytest has failed the test while its ranks ran: pytest-timeout does."""
    outcomes: Any = sys.modules.get("_pytest.outcomes")
    return outcomes is not None and isinstance(error, outcomes.Failed)


def _tell(doing: list[str], around: Around) -> None:
    """Print what the ranks did, to the terminal: after Ctrl-C pytest shows nothing of a test."""
    with around.debugging():
        print("\n".join(["", "what the ranks did:", *doing, ""]), flush=True)


def _itself(value: object, *, test: str) -> bytes:
    """The object that a method belongs to, for the ranks."""
    if isinstance(value, unittest.TestCase):
        method = value._testMethodName
        kept = {name: one for name, one in vars(value).items() if not name.startswith("_") and name != method}
        for name, one in kept.items():
            pickled(one, f"the attribute {name!r} of its test case", test)
        return pack((type(value), method, kept))
    for name, one in getattr(value, "__dict__", {}).items():
        pickled(one, f"the attribute {name!r} of its object", test)
    return pickled(value, "the object of its class", test)


def _terminal(folder: Path, around: Around) -> Terminal:
    def read() -> str:
        return sys.stdin.readline()

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    return Terminal(folder, around.debugging, read, write, around.why_not)


def _say(screen: Terminal, rank: int, line: str) -> None:
    screen.say(f"rank {rank}: {line}\n")
