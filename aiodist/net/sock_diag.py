"""The owner of one TCP socket of this host, as the kernel says when asked (Linux, `sock_diag(7)`).

That takes some 50 µs, however many connections there are. Their table in /proc is read and split in
milliseconds, and an unauthenticated peer could have that done as often as it connects.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

Address = tuple[str, int]

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY, _ERROR, _REQUEST = 20, 2, 1  # types of messages, a flag
_HEADER = struct.Struct("=IHHII")  # of netlink: length, type, flags, number, port
_FAILED = struct.Struct("=i")
_PORTS = struct.Struct("!HH")  # of a socket: its own and the other end's
_ASKED = struct.Struct("=BBBxI4s16s16sI8s")  # family, protocol, more, states, ports, hosts, interface, cookie
_FOUND = struct.Struct("=4x4s56xII")  # ports, owner, inode
_STATES = 0xFFFFFFFF
_ANY = b"\xff" * 8  # cookie
_LOOPBACK = 1  # the index of that interface, in every network namespace


def owner(address: Address, remote: Address) -> int | None:
    """The user of the socket that has an address and is connected to another over loopback; None: there is no
    such socket, or no process holds it any more.

    Args:
        address: numeric, without a zone; IPv4 is not spelled as a part of IPv6.
        remote: likewise.

    Raises:
        OSError: the kernel cannot be asked here.
    """
    try:
        return _ask(address, remote)
    except FileNotFoundError:
        _ask(remote, address)  # a kernel that cannot tell does not know ours either
        return None


def _ask(address: Address, remote: Address) -> int | None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    hosts = [socket.inet_pton(family, host).ljust(16, b"\0") for host in (address[0], remote[0])]
    ports = _PORTS.pack(address[1], remote[1])
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, _STATES, ports, *hosts, _LOOPBACK, _ANY)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 0, 0) + asked)
        answer = kernel.recv(4096)  # it is there: the kernel answers in the call
    failed = len(answer) >= _HEADER.size and _HEADER.unpack_from(answer)[1] == _ERROR
    if len(answer) < _HEADER.size + (_FAILED if failed else _FOUND).size:
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))
    if failed:
        number = -_FAILED.unpack_from(answer, _HEADER.size)[0]
        raise OSError(number, os.strerror(number))
    found, user, inode = _FOUND.unpack_from(answer, _HEADER.size)
    # Where nobody is connected so, it finds who listens there. What no process holds has no inode.
    return user if found == ports and inode else None
