"""Slurm: rank 0 listens at a port made of the numbers of job and step, on the step's first host.

All know both from Slurm's variables, so nothing is told. What the variables mean is read without I/O.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace

from aiodist.base.environment import is_loopback
from aiodist.base.errors import UsageError
from aiodist.net.sockets import outward, resolve, towards
from aiodist.rendezvous.hosting import host_or_join, own_address
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.meeting_place import MeetingPlace
from aiodist.rendezvous.meeting_point import MeetingPoint

_log = logging.getLogger("aiodist.rendezvous")

MAX_HOSTS = 65536
"""As many nodes as Slurm can have; what names more is no list of hosts."""

_LONGEST_NAME = 255
_FIRST_PORT, _PORTS = 20000, 12000  # below the ports that Linux gives to outgoing connections

_ENTRY = re.compile(r"(?:[\w.-]|\[[^][]*\])+", re.ASCII)  # names and brackets, up to a comma outside of these
_PIECE = re.compile(r"\[([^][]*)\]|([^][]+)")
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_WORD = re.compile(r"\w+", re.ASCII)
_ONE = range(1)


async def meet(invitation: Invitation, _point: MeetingPoint) -> Meeting:
    """Meet at a port that follows from the numbers of job and step, on the step's first host.

    MASTER_ADDR or MASTER_PORT, if only one of them is set, replaces that half.
    """
    place = invitation.placement()
    environ = invitation.environ
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    address = place.master_addr or await _master(invitation)
    # Who comes to the port of another step, whose numbers have the same sum, is told so.
    name = f"step {job}.{step}"
    invitation = replace(invitation, environ={"AIODIST_JOB": name, **environ})
    where = MeetingPlace.named(name)
    return await host_or_join(invitation, address, place.master_port or port(job, step), where)


async def _master(invitation: Invitation) -> str:
    """The host of rank 0, as this one reaches it."""
    if invitation.placement().node_count == 1:
        return "127.0.0.1"
    name = host_of_rank_0(invitation.environ)
    try:
        found = [str(address[0]) for _, address in await resolve(name, 0)]
    except OSError:
        found = []
    if not all(map(is_loopback, found)):
        return name
    if name.partition(".")[0] == socket.gethostname().partition(".")[0]:
        # Debian's /etc/hosts has 127.0.1.1 for a host itself. All its tasks meet where the others come to.
        led = await towards(another_host(invitation.environ))
        return own_address(invitation, outward() if not led or is_loopback(led) else led)
    if found:
        _log.warning("%s is %s here; if it is another host, set MASTER_ADDR to its address", name, found[0])
    return name


# What can stand in one place of a name: forms, each with the numbers that are written in it. A word has one.
_Piece = list[tuple[str, range]]


def hosts(nodelist: str) -> list[str]:
    """The hosts of a list in Slurm's short form: 'n[1-2,07],x' → n1, n2, n07, x.

    Of several brackets in a name the last one changes first. Numbers have as many digits as the one that
    begins their range.

    Raises:
        UsageError: it is no such list, or names more than `MAX_HOSTS`.
    """
    entries = _parse(nodelist)
    if sum(map(_count, entries)) > MAX_HOSTS:
        raise _nonsense(nodelist, f"it names more than {MAX_HOSTS} hosts")
    return ["".join(name) for entry in entries for name in itertools.product(*map(_texts, entry))]


def first_host(nodelist: str) -> str:
    """The first host of a list in Slurm's short form; `UsageError` if it is none."""
    return _first(_parse(nodelist)[0])


def host_of_rank_0(environ: Mapping[str, str]) -> str:
    """The host of a step's first task.

    That is the first one of the step, and the list of a step is sorted. The components of a heterogeneous job
    are not: rank 0 is on the first of them that takes part.

    Args:
        environ: the environment variables of any task of the step.

    Raises:
        UsageError: the tasks lie in an order of the user's own; or the variables have no meaning.
    """
    step = environ.get("SLURM_STEP_NODELIST", "")
    if (order := environ.get("SLURM_DISTRIBUTION", "")).startswith("arbitrary"):
        raise UsageError(
            f"rank 0's host, one of {step[:80]}, is not known: SLURM_DISTRIBUTION={order[:40]}",
            hint="Set MASTER_ADDR to rank 0's host, for all tasks",
        )
    if (first := environ.get("SLURM_JOB_NODELIST_HET_GROUP_0", "")) and environ.get("SLURM_HET_SIZE"):
        taking_part = set(hosts(step))
        for group in itertools.count(1):
            for host in hosts(first):
                if host in taking_part:
                    return host
            if not (first := environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", "")):
                break
    return first_host(step)


def another_host(environ: Mapping[str, str]) -> str:
    """A host of a step's tasks that is not the first task's: a route to it says how others reach that one.

    Args:
        environ: as for `host_of_rank_0`; errors likewise.
    """
    first = host_of_rank_0(environ)
    return next((name for name in hosts(environ.get("SLURM_STEP_NODELIST", "")) if name != first), first)


def port(job: str, step: str) -> int:
    """The port at which the tasks of a step meet: the same for all, and seldom that of another step."""
    digest = hashlib.blake2b(f"{job} {step}".encode(), digest_size=8).digest()
    return _FIRST_PORT + int.from_bytes(digest) % _PORTS


def _parse(nodelist: str) -> list[list[_Piece]]:
    """Entries, each the pieces of names in their order. Nothing is expanded yet."""
    entries: list[list[_Piece]] = []
    at = 0
    while True:
        entry = _ENTRY.match(nodelist, at)
        if entry is None:
            raise _nonsense(nodelist, f"no host is at character {at + 1}")
        pieces = _PIECE.findall(entry[0])
        entries.append(
            [_bracket(nodelist, inside) if not word else [(word, _ONE)] for inside, word in pieces]
        )
        if len(_first(entries[-1])) > _LONGEST_NAME:
            raise _nonsense(nodelist, f"a name in it has more than {_LONGEST_NAME} characters")
        at = entry.end()
        if at == len(nodelist):
            return entries
        if nodelist[at] != ",":
            raise _nonsense(nodelist, f"{nodelist[at]!r} at character {at + 1} has no meaning")
        at += 1


def _bracket(nodelist: str, inside: str) -> _Piece:
    piece: _Piece = []
    for part in inside.split(","):
        if (match := _RANGE.fullmatch(part)) is not None:
            first, last = int(match[1]), int(match[2])
            if first > last:
                raise _nonsense(nodelist, f"the range {part} ends before it begins")
            piece.append((f"{{:0{len(match[1])}}}", range(first, last + 1)))
        elif _WORD.fullmatch(part):
            piece.append((part, _ONE))
        else:
            raise _nonsense(nodelist, f"{part[:40]!r} in brackets is neither a number nor a range")
    return piece


def _count(entry: list[_Piece]) -> int:
    return math.prod(sum(len(numbers) for _, numbers in piece) for piece in entry)


def _texts(piece: _Piece) -> Iterator[str]:
    return (form.format(number) for form, numbers in piece for number in numbers)


def _first(entry: list[_Piece]) -> str:
    return "".join(next(_texts(piece)) for piece in entry)


def _nonsense(nodelist: str, why: str) -> UsageError:
    return UsageError(f"{nodelist[:80]!r} is not a list of hosts of Slurm: {why}")
