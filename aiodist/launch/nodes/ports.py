"""Addresses and ports of this machine, for the launcher."""

from __future__ import annotations

import socket

from aiodist.environment import is_loopback
from aiodist.errors import UsageError


def free_port(host: str) -> int:
    """A port that was free a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def short_host() -> str:
    """This machine's name without its domain."""
    return socket.gethostname().partition(".")[0] or "localhost"


def bind_address(master_addr: str) -> str | None:
    """The address to listen on so that the others reach us as `master_addr`; None: it is another machine.

    A name that resolves to loopback here (Debian's 127.0.1.1) is still our name to the others, so we
    listen everywhere. Of the addresses of a name, the first that is ours counts.
    """
    try:
        found = socket.getaddrinfo(master_addr.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _name, address in found:
        host = str(address[0])
        if is_loopback(host) and not is_loopback(master_addr):
            return "::" if family == socket.AF_INET6 else "0.0.0.0"
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind((host, 0))
            except OSError:
                continue
        return host
    return None


def check_free(host: str, port: int) -> None:
    """Refuse a MASTER_PORT that a worker could not bind; an address that is not ours is not checked."""
    address = bind_address(host)
    if address is None:
        return
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            raise UsageError(
                f"--master-port {port} cannot be used on {host}: {error.strerror}",
                hint="Leave it out: a free port is picked then",
            ) from None


def reachable(bound: str) -> str:
    """Where to dial a server of our own that is bound to this address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
