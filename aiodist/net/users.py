"""The user of this host under which the other end of a connection runs, as the kernel says.

A Unix socket tells. For a TCP connection over loopback the kernel is asked for the other end's socket
(Linux). Where it may not be asked (in some sandboxes) its table of sockets says it, which is what an identd
reads, and takes longer. Where a job has a secret, or TLS, it is not asked: a peer that has that may run
under any user. Without one every process on this host could join, were it not for this.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiodist.base.environment import switch
from aiodist.base.environment.user import is_me
from aiodist.net import sock_diag
from aiodist.net.local_socket import is_other_user
from aiodist.net.records import RecordSocket
from aiodist.net.wire.handshake import refuse

_TABLES = ("tcp", "tcp6")  # in /proc/self/net
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9  # fields
_HINT = "set AIODIST_SECRET; AIODIST_ALLOW_INSECURE=1 allows it without"


def why_not(sock: socket.socket | RecordSocket, vouched: bool) -> str:
    """The reason why the process at the other end may not be served, or believed, in words; '' where nothing
    is known against it.

    Args:
        sock: a connection that both ends hold: one that was not accepted yet has no user.
        vouched: there is a secret, or TLS, which says more than a user.
    """
    if sock.family == getattr(socket, "AF_UNIX", None):
        assert isinstance(sock, socket.socket)
        return "it runs under another user" if is_other_user(sock) else ""
    if vouched:
        return ""
    try:
        there, here = sock.getpeername(), sock.getsockname()
    except OSError:
        return ""  # gone already
    if not _is_loopback(there[0]) or switch(os.environ, "AIODIST_ALLOW_INSECURE"):
        return ""  # other hosts are served only without this check
    user = _owner(there, here)
    if user is not None and is_me(user):
        return ""
    if user is None and isinstance(sock, socket.socket) and _hung_up(sock):
        return ""  # it has said nothing, and never will
    what = "its user is not known" if user is None else "it runs under another user"
    return f"{what}, and this job has no secret: {_HINT}"


def send_away(sock: socket.socket, why: str) -> None:
    """Close a connection of which nothing was read, and tell the peer what `why_not` said: or it would take
    that for an accident, and try again."""
    for ours, theirs in (("it runs", "this process runs"), ("its user", "this process's user")):
        why = why.replace(ours, theirs, 1)
    with contextlib.suppress(OSError):
        sock.recv(4096)  # what lies unread would have the kernel reset the connection, words and all
        sock.send(refuse(why), getattr(socket, "MSG_NOSIGNAL", 0))
    sock.close()


def _hung_up(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _owner(address: tuple[Any, ...], remote: tuple[Any, ...]) -> int | None:
    """The user of the socket of this host that has an address, and is connected to another; None: unknown."""
    with contextlib.suppress(OSError):
        return sock_diag.owner(_plain(address), _plain(remote))
    for table in _TABLES:
        with contextlib.suppress(OSError):
            lines = Path("/proc/self/net", table).read_text().splitlines()[1:]
            user = find_owner(lines, address, remote)
            if user is not None:
                return user
    return None


def _plain(address: tuple[Any, ...]) -> tuple[str, int]:
    """An address without a zone, and IPv4 as such."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    return str(getattr(host, "ipv4_mapped", None) or host), address[1]


def find_owner(lines: Iterable[str], address: tuple[Any, ...], remote: tuple[Any, ...]) -> int | None:
    """The user that the lines of the table name. A socket that no process holds (any more) has none."""
    ours = set(_spellings(*address[:2])), set(_spellings(*remote[:2]))
    for line in lines:
        fields = line.split()
        if fields[_LOCAL] in ours[0] and fields[_REMOTE] in ours[1] and fields[_INODE] != "0":
            return int(fields[_USER])
    return None


def _spellings(host: str, port: int) -> list[str]:
    """An address as the table has it: 32-bit words in the machine's order, IPv4 perhaps as a part of IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    forms = [address.packed]
    if address.version == 4:
        forms.append(bytes(10) + b"\xff\xff" + address.packed)
    elif mapped is not None:
        forms.append(mapped.packed)
    return [f"{_words(form)}:{port:04X}" for form in forms]


def _words(packed: bytes) -> str:
    parts = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(part, sys.byteorder):08X}" for part in parts)
