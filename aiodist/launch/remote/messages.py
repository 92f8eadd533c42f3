"""What the launcher and an agent tell each other by the pipes of ssh, a line of JSON each. Pure.

    agent → launcher    Hello, Told, Began, Over; every line begins with `MARK`, and all others are output
    launcher → agent    Task, first; then Address, Signal, Beat

The secret and all variables are in the task, and so in no command line.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Union

from aiodist.base.errors import WireError
from aiodist.base.sanitize import one_line

PROTOCOL = 2
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
    protocol: int = PROTOCOL


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
        listen: address of this host as the launcher's ssh came to it; '' where it did not.
        address: where the agents meet; '' on node 0, which says it, and where it has not said it yet.
        others: the other hosts' addresses or names; on node 0, which listens where a route to them begins.
    """

    argv: list[str]
    environ: dict[str, str] = field(repr=False)
    folder: str
    name: str
    node: int
    nodes: int
    most: int = 0
    listen: str = ""
    address: str = ""
    others: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Told:
    """Node 0 listens there."""

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
class Address:
    """Where node 0 listens."""

    address: str


@dataclass(frozen=True)
class Signal:
    """The operator sent this signal; by its name, since numbers differ between systems."""

    name: str


@dataclass(frozen=True)
class Beat:
    """A sign of life."""


Message = Union[Hello, Task, Told, Began, Over, Address, Signal, Beat]  # noqa: UP007  (a tuple of its parts is needed)
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Hello, Task, Told, Began, Over, Address, Signal, Beat)
}
_PLAIN = {"str": str, "int": int}


def encode(message: Message) -> bytes:
    """A message as a line, without `MARK`."""
    text = json.dumps([type(message).__name__, asdict(message)], ensure_ascii=False)
    return text.encode(errors="surrogatepass") + b"\n"


def decode(line: bytes) -> Message:
    """The message in a line; `WireError` where there is none."""
    try:
        name, values = json.loads(line)
        kind = _KINDS[name]
        types = {one.name: str(one.type) for one in fields(kind)}
        if values.keys() != types.keys() or not all(_fits(values[key], types[key]) for key in types):
            raise ValueError(f"no {name}")
        made: Message = kind(**values)
        return made
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError(f"not a message: {one_line(str(error), 100)}") from None


def _fits(value: Any, kind: str) -> bool:
    if kind in _PLAIN:
        return type(value) is _PLAIN[kind]
    if kind == "list[str]":
        return type(value) is list and all(type(one) is str for one in value)
    return type(value) is dict and all(type(k) is str and type(v) is str for k, v in value.items())
