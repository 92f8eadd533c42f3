"""Loopback, and the address that peers are told. A name server may not answer for long."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aiodist.base.errors import UsageError
from aiodist.cli.doctor.topic import Answers, Finding, Machine, ProcessAnswer, ProcessQuestion

_PATIENCE = 1.0  # seconds for loopback


class Configured(NamedTuple):
    """The addresses that the environment says.

    Attributes:
        own: the address of this host that peers shall be told; '' where nothing says.
        variable: that says so.
        trouble: why it means nothing.
        there: the host where the job meets; '' where nothing says.
    """

    own: str = ""
    variable: str = ""
    trouble: str = ""
    there: str = ""


def questions(machine: Machine) -> dict[str, ProcessQuestion]:
    """Names are looked up in a process of its own."""
    addresses = configured(machine.environ)
    return {"address": ProcessQuestion("addresses", examine, (addresses.own, addresses.there))}


def examine(own: str, there: str) -> dict[str, str]:
    """Check two hosts' names or addresses, each '' for none.

    Returns:
        'unusable': why this host cannot listen on `own`; 'own': this host's address towards `there`;
        'unreachable': why there is none. '' where nothing is to be said.
    """
    found = {"unusable": "", "own": "", "unreachable": ""}
    if own:
        try:
            family, _, _, _, address = socket.getaddrinfo(own.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
            with socket.socket(family) as sock:
                sock.bind(address)
        except (OSError, UnicodeError) as error:
            found["unusable"] = _why(error)
    if there:
        try:
            family, _, _, _, address = socket.getaddrinfo(there.strip("[]"), 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(address)  # asks the routes; nothing is sent
                found["own"] = str(sock.getsockname()[0])
        except (OSError, UnicodeError) as error:
            found["unreachable"] = _why(error)
    return found


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say whether loopback answers, and which address of this host its peers will use."""
    from aiodist.net.sockets import outward

    yield check_loopback(loopback())
    yield from check_address(configured(machine.environ), outward(), answers["address"])


def configured(environ: Mapping[str, str]) -> Configured:
    """Read the addresses that the environment says."""
    from aiodist.net.sockets import interface_address

    there = _meeting_host(environ.get("AIODIST_STORE", "")) or environ.get("MASTER_ADDR", "")
    if own := environ.get("AIODIST_HOST", ""):
        return Configured(own, "AIODIST_HOST", there=there)
    variable = "AIODIST_SOCKET_IFNAME"
    interface = environ.get(variable, "")
    if not interface:
        return Configured(there=there)
    try:
        return Configured(interface_address(interface), variable, there=there)
    except UsageError as error:
        return Configured("", variable, str(error), there)


def loopback() -> str:
    """Why a connection to 127.0.0.1 does not work; '' if it does."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_PATIENCE)
            with socket.create_connection(server.getsockname(), _PATIENCE) as ours:
                theirs, _ = server.accept()
                with theirs:
                    ours.sendall(b"x")
                    theirs.settimeout(_PATIENCE)
                    return "" if theirs.recv(1) == b"x" else "nothing arrives"
    except OSError as error:
        return error.strerror or str(error)


def check_loopback(trouble: str) -> Finding:
    """Whether processes of this host reach each other."""
    if not trouble:
        return Finding("loopback", "ok", "127.0.0.1 answers")
    cost = "ranks of one host cannot meet, unless MASTER_ADDR is an address of another interface"
    return Finding("loopback", "missing", f"127.0.0.1: {trouble}", cost, "ip link set lo up")


def check_address(configured: Configured, outward: str, answer: ProcessAnswer) -> Iterator[Finding]:
    """Say which address of this host its peers will use.

    Args:
        configured: what the environment says.
        outward: this host's address towards others.
        answer: about both hosts in `configured`.
    """
    yield _check_own(configured, outward, answer)
    trouble = answer.trouble or answer.facts["unreachable"]
    if configured.there and trouble:
        fix = "export MASTER_ADDR=ADDRESS, of the host of rank 0"
        value = f"{configured.there}: {trouble}"
        yield Finding("meeting place", "missing", value, "this process cannot meet the others", fix)


def _check_own(configured: Configured, outward: str, answer: ProcessAnswer) -> Finding:
    from aiodist.base.environment import is_loopback

    choose = f"export AIODIST_HOST={outward or 'ADDRESS'}"
    trouble = configured.trouble or answer.trouble or answer.facts["unusable"]
    if configured.variable and trouble:
        value = (
            configured.trouble
            or f"{configured.own} ({configured.variable}) is no address of this host: {trouble}"
        )
        cost = "no rank can listen here, so none can start"
        return Finding("address", "missing", value, cost, f"unset {configured.variable}")
    if configured.variable:
        return Finding("address", "ok", f"{configured.own}, as {configured.variable} says")
    own = answer.facts.get("own", "")
    if own and is_loopback(own) and not is_loopback(configured.there):
        value = f"{own}, since {configured.there} is a name of loopback here"
        return Finding("address", "limited", value, "ranks of other hosts cannot reach this one", choose)
    if own:
        return Finding("address", "ok", f"{own}, which leads to {configured.there}")
    if outward:
        return Finding("address", "ok", f"127.0.0.1 for jobs of this host; {outward} leads to others")
    value = "127.0.0.1 for jobs of this host; it has no route to others"
    return Finding("address", "limited", value, "jobs over several hosts cannot use this one", choose)


def _meeting_host(store: str) -> str:
    """The first host of 'host:port' or 'etcd://user@host:port,other:port/path'; '' where there is none."""
    from aiodist.base.environment import split_address

    place = store.rpartition("://")[2].partition("/")[0].rpartition("@")[2].partition(",")[0]
    try:
        return split_address(place)[0]
    except UsageError:
        return ""


def _why(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "it cannot be a host's name"
    return error.strerror or str(error)
