"""The hosts of a job: from -H, from hostfiles as mpirun, DeepSpeed and Horovod write them, and filters. Pure.

    a:4,b:4                  -H: workers behind a colon
    a slots=4 max_slots=8    Open MPI, DeepSpeed, Horovod; what else a line says is passed over
    a:4                      Hydra, Intel MPI
    user@a, [::1]:4          with a login; an IPv6 address
    # …                      a comment

A host that stands there twice has the workers of both, as for Open MPI. Filters are DeepSpeed's: `a@b:0,2` is
all of a, and of b the workers 0 and 2, which get the devices of these numbers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from aiodist.base.errors import UsageError
from aiodist.base.sanitize import one_line

_NAME = re.compile(r"(?:[\w.-]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+)", re.ASCII)
_BLANKS = re.compile(r"\s*=\s*")
_FORMS = "Write host, host:4, user@host:4 or [::1]:4; in a file, one on each line"
_MOST_SLOTS = 4096


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: as it was written: 'a', 'user@a', an address; one of IPv6 in brackets.
        slots: workers; 0: it does not say.
        devices: numbers of the devices that its workers get, one each; (): all that there are.
    """

    name: str
    slots: int = 0
    devices: tuple[int, ...] = ()

    @property
    def login(self) -> str:
        """The host's name as ssh takes it, which knows no brackets."""
        user, at, bare = self.name.rpartition("@")
        return f"{user}{at}{bare.strip('[]')}"

    @property
    def shown(self) -> str:
        """The host's name for people: without login and domain; an address is whole."""
        bare = self.name.rpartition("@")[2].strip("[]")
        return bare if bare.replace(".", "").isdecimal() or ":" in bare else bare.partition(".")[0]


def from_option(text: str) -> list[Host]:
    """The hosts of -H.

    Raises:
        UsageError: it is no list of hosts.
    """
    return _together(
        _host(word.strip(), f"-H {one_line(text, 80)}") for word in text.split(",") if word.strip()
    )


def from_file(text: str, name: str) -> list[Host]:
    """The hosts of a hostfile.

    Args:
        text: what it holds.
        name: of the file, for errors.

    Raises:
        UsageError: a line of it has no meaning.
    """
    found = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        words = _BLANKS.sub("=", line.partition("#")[0]).split()
        if not words:
            continue
        where = f"{name}, line {number}"
        host = _host(words[0], where)
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals:
                raise UsageError(f"{where}: {word[:40]!r} is no key=value", hint="Write: host slots=4")
            if key.lower() == "slots":
                host = replace(host, slots=_slots(value, where))
            elif difflib.get_close_matches(key.lower(), ["slots"], 1, 0.8):
                raise UsageError(f"{where}: there is no {key[:40]}", hint="Did you mean slots?")
        found.append(host)
    if not found:
        raise UsageError(f"{name} names no host", hint="Write a line for each: host slots=4")
    return _together(found)


def chosen(hosts: Sequence[Host], include: str = "", exclude: str = "", *, strict: bool = True) -> list[Host]:
    """The hosts that a filter leaves, in their order.

    Args:
        hosts: all that there are.
        include: take only these.
        exclude: leave these out.
        strict: a filter may only name hosts that are there, and some host has to be left.

    Raises:
        UsageError: both are given, a host is not there, or none is left.
    """
    if include and exclude:
        raise UsageError("--include and --exclude exclude each other", hint="Give one of them")
    named = _filter(include or exclude, {host.name: host for host in hosts}, strict)
    left = []
    for host in hosts:
        slots = named.get(host.name)
        if include and slots is not None:
            left.append(_only(host, slots) if slots else host)
        elif not include and slots is None:
            left.append(host)
        elif not include and slots:
            rest = tuple(slot for slot in range(host.slots) if slot not in slots)
            left += [_only(host, rest)] if rest else []
    if not left and strict:
        raise UsageError("no host is left", hint=f"There are: {', '.join(host.name for host in hosts)[:200]}")
    return left


def _only(host: Host, slots: tuple[int, ...]) -> Host:
    return replace(host, slots=len(slots), devices=slots)


def _filter(text: str, known: dict[str, Host], strict: bool) -> dict[str, tuple[int, ...]]:
    """'a@b:0,2' → {'a': (), 'b': (0, 2)}; () means the whole host."""
    named: dict[str, set[int]] = {}
    rest = text.strip()
    while rest:
        host, rest = _first(rest, known)
        numbers, _, rest = rest.partition("@")
        if host is None:
            if strict:
                raise UsageError(
                    f"the filter names {numbers[:60]!r}, which is none of the hosts",
                    hint=f"There are: {', '.join(known)[:200]}",
                )
            continue
        slots = {_slot(number, host) for number in numbers[1:].split(",")} if numbers[1:] else set()
        before = named.get(host.name)
        named[host.name] = slots if before is None else before | slots if before and slots else set()
    return {name: tuple(sorted(slots)) for name, slots in named.items()}


def _first(text: str, known: dict[str, Host]) -> tuple[Host | None, str]:
    """The host whose name a filter begins with, and what follows it: '', '@…' or ':…'.

    A host with a login may be named without it. The longest name counts: 'b@c' may be a login and a host.
    """
    bare = {name.rpartition("@")[2]: host for name, host in known.items()}
    fitting = [
        name
        for name in (*known, *bare)
        if text.startswith(name) and text[len(name) : len(name) + 1] in ("", "@", ":")
    ]
    if not fitting:
        return None, text
    name = max(fitting, key=len)
    return known.get(name) or bare[name], text[len(name) :]


def _slot(text: str, host: Host) -> int:
    if not text.strip().isdecimal() or int(text) >= host.slots:
        most = f"0 to {host.slots - 1}" if host.slots else "none, since it says no number of workers"
        raise UsageError(f"the filter names worker {text[:20]!r} of {host.name}, which has {most}")
    return int(text)


def _host(word: str, where: str) -> Host:
    match = _NAME.match(word)
    if match is None or word.startswith("-") or "@-" in word:  # it would be an option of ssh's
        raise UsageError(f"{where}: {word[:60]!r} is no host", hint=_FORMS)
    name, rest = match[0], word[match.end() :]
    if not rest:
        return Host(name)
    if not rest.startswith(":"):
        raise UsageError(f"{where}: {word[:60]!r} is no host", hint=_FORMS)
    return Host(name, _slots(rest[1:], where))


def _slots(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) <= _MOST_SLOTS:
        raise UsageError(
            f"{where}: {text[:20]!r} is no number of workers",
            hint=f"1 to {_MOST_SLOTS}; in a file, one host on each line",
        )
    return int(text)


def _together(hosts: Iterable[Host]) -> list[Host]:
    """Each host once, with the workers of all its entries."""
    found: dict[str, Host] = {}
    for host in hosts:
        before = found.get(host.name)
        both = host if before is None else replace(host, slots=(before.slots or 1) + (host.slots or 1))
        found[host.name] = both
    return list(found.values())
