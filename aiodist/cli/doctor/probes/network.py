"""Loopback, and which address of this host others would use."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from aiodist.base.environment import split_address
from aiodist.base.errors import UsageError

_PATIENCE = 1.0


@dataclass(frozen=True)
class Told:
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


def told(environ: Mapping[str, str]) -> Told:
    """Read it."""
    there = _meeting_host(environ.get("AIODIST_STORE", "")) or environ.get("MASTER_ADDR", "")
    if own := environ.get("AIODIST_HOST", ""):
        return Told(own, "AIODIST_HOST", "", there)
    variable = "AIODIST_SOCKET_IFNAME"
    interface = environ.get(variable, "")
    if not interface:
        return Told("", "", "", there)
    from aiodist.net.sockets import interface_address

    try:
        return Told(interface_address(interface), variable, "", there)
    except UsageError as error:
        return Told("", variable, str(error), there)


def _meeting_host(store: str) -> str:
    """The first host of 'host:port' or 'etcd://user@host:port,other:port/path'; '' where there is none."""
    place = store.rpartition("://")[2].partition("/")[0].rpartition("@")[2].partition(",")[0]
    try:
        return split_address(place)[0]
    except UsageError:
        return ""


def loopback() -> str:
    """Why a connection to 127.0.0.1 does not work; '' if it does."""
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            server.settimeout(_PATIENCE)
            with socket.create_connection(server.getsockname(), _PATIENCE) as ours:
                theirs, _ = server.accept()
                with theirs:
                    ours.sendall(b"x")
                    theirs.settimeout(_PATIENCE)
                    return "" if theirs.recv(1) == b"x" else "nothing arrives"
    except OSError as error:
        return error.strerror or str(error)


def free_port() -> int:
    """A port of loopback that was free a moment ago; 1, where nobody listens, if there is none."""
    try:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
            return port
    except OSError:
        return 1
