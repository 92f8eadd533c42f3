"""Addresses and ports of this machine, for the launcher."""

from __future__ import annotations

import socket

from aiodist.base.environment import is_loopback
from aiodist.base.errors import UsageError

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def reserve_port(host: str) -> socket.socket:
    """A socket that keeps a free port for those who bind it by its number, as long as it is open.

    It does not listen, and has SO_REUSEADDR, as every usual server has: that one may bind it, and listen.
    Nobody is given it who asks for any free port, or connects from one.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, 0))
    return sock


def short_host() -> str:
    """This machine's name without its domain."""
    return socket.gethostname().partition(".")[0] or "localhost"


def bind_address(master_addr: str, local_addr: str | None = None) -> str | None:
    """The address to listen on, so that the others reach us as `master_addr`; None: it is another machine.

    Of the addresses of a name the first that is ours counts, one towards other hosts before the loopback's:
    what a name of ours means here may be 127.0.1.1 (Debian), and then `local_addr`, this node's address as
    the operator says, comes before that. Never all addresses, unless `master_addr` says so.
    """
    try:
        found = socket.getaddrinfo(master_addr, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # what cannot be a name is a UnicodeError
        return None
    own = [str(address[0]) for family, _, _, _, address in found if _is_ours(family, str(address[0]))]
    inner = [host for host in own if is_loopback(host)]
    outer = [host for host in own if host not in inner]
    if is_loopback(master_addr):
        local_addr = None
    return next(iter([*outer, *([local_addr] if own and local_addr else []), *inner]), None)


def about_port(address: str, master_addr: str) -> str:
    """A warning about an address that we listen on, for the operator; '' where it is what was named."""
    if is_loopback(address) and not is_loopback(master_addr):
        return (
            f"listening on {address}, which is what {master_addr} means here: no other host can come in. "
            "Give an address in --master-addr, or --local-addr on this node, to let them in"
        )
    if address in _EVERYWHERE and master_addr not in _EVERYWHERE:
        return (
            f"listening on all addresses of this host, since {master_addr} is none of them. "
            "Give --local-addr on this node to choose one"
        )
    return ""


def _is_ours(family: int, host: str) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


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
    """The address at which to dial a server of our own that is bound to this one."""
    return _EVERYWHERE.get(bound, bound)
