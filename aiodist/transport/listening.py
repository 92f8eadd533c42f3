"""Sockets that an endpoint listens on: a free port of its address, and a fresh name on this host."""

from __future__ import annotations

import secrets
import socket

from aiodist.base.errors import RendezvousError
from aiodist.net.shortage import EXHAUSTED, shortage
from aiodist.net.sockets import listen_on


def listen_tcp(host: str) -> socket.socket:
    """A non-blocking socket that listens on a free port of exactly `host`, a numeric address. `OSError` where
    that is none of this host's (`not_mine`)."""
    return listen_on(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, 0))


def listen_unix() -> tuple[bytes, socket.socket]:
    """A non-blocking socket that listens under a fresh name in the abstract namespace of Unix sockets (Linux;
    no file is left behind) → the name, the socket."""
    name = b"aiodist-" + secrets.token_hex(16).encode()
    return name, listen_on(socket.AF_UNIX, unix_address(name))


def unix_address(name: bytes) -> bytes:
    """The address of an abstract socket."""
    return b"\0" + name


def not_mine(host: str, error: OSError) -> RendezvousError:
    """The error for an address that cannot be listened on."""
    lack = shortage(error) if error.errno in EXHAUSTED else None
    if lack is not None:
        return RendezvousError(f"this process {lack.what}, so it cannot listen", hint=lack.hint)
    return RendezvousError(
        f"cannot listen on {host} ({error.strerror or error})",
        hint="Set AIODIST_HOST to an address of this host that its peers can reach",
    )
