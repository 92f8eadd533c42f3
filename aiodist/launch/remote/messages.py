"""What the launcher and an agent tell each other by the pipes of ssh, a line of JSON each. Pure.

    agent → launcher    Hello, Address (node 0), Began, Over, each behind `MARK`; all other lines are output
    launcher → agent    Task, Signal, and every `BEAT` Address

The secret and all variables are in the task, and so in no command line.

The agents' store cannot carry this: the launcher may have no way to its host but ssh, and Hello, Task and
Address come before an agent knows where the store is. Nor can ssh's exit status: 255 may be the job's or
ssh's, it comes late where a login's leftovers hold the pipes, and it has no verdict.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final, get_args

from aiodist.base.errors import WireError
from aiodist.base.sanitize import one_line
from aiodist.net.wire.typed import build

MARK = b"\x1e"
"""The first byte of a line that is a message. Lines of workers begin with their prefix."""

BEAT: Final = 1.0
"""Seconds between signs of life of the launcher."""

SILENCE: Final = 7.0
"""Seconds without any until an agent ends its workers: a cable was pulled, or the launcher is stopped.

So long, too, until the other nodes have lost a silent one."""

LONGEST = 1 << 20
"""Bytes of a message of an agent's."""

LONGEST_TASK = 64 << 20
"""Bytes of a task, which has all variables in it."""


@dataclass(frozen=True)
class Hello:
    """The first words of an agent: which aiodist is there, and the address by which it is reached."""

    version: str
    address: str


@dataclass(frozen=True)
class Task:
    """An agent's orders.

    Attributes:
        argv: of `aiodist run`.
        environ: variables that are added to its own.
        folder: to work in.
        name: of the host, for people.
        node: its number.
        nodes: number of nodes that the job needs.
        most: number that it takes, where that is more; else 0.
        others: the other hosts' addresses or names; on node 0, which listens where a route to them begins.
    """

    argv: tuple[str, ...]
    environ: dict[str, str] = field(repr=False)
    folder: str
    name: str
    node: int
    nodes: int
    most: int
    others: tuple[str, ...]


@dataclass(frozen=True)
class Address:
    """Where node 0 listens; '': it has not said so yet."""

    address: str


@dataclass(frozen=True)
class Began:
    """The agents have met; from here on workers run."""


@dataclass(frozen=True)
class Over:
    """The agent's end: the exit code that the job deserves, and the verdict as text."""

    code: int
    verdict: str


@dataclass(frozen=True)
class Signal:
    """The operator sent this signal; by its name, since numbers differ between systems."""

    name: str


Message = Hello | Task | Address | Began | Over | Signal
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """A message as a line, without `MARK`."""
    return json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message in a line; `WireError` where there is none."""
    try:
        name, values = json.loads(line)
        message: Message = build(_KINDS[name], values, str)
        return message
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireError(f"not a message: {one_line(str(error), 100)}") from None
