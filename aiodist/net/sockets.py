"""Sockets for rendezvous: bind exactly one address, and say who holds a port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from aiodist.base.environment import is_loopback
from aiodist.base.errors import AiodistError, RendezvousError, UsageError
from aiodist.base.sanitize import one_line
from aiodist.net import kept
from aiodist.net.forks import own_socket
from aiodist.net.shortage import EXHAUSTED, shortage
from aiodist.net.tasks import settle

BACKLOG = 1024  # asyncio's default of 100 drops connects when a large job starts
_LISTEN = "0A"  # in /proc/net/tcp
_LINK_LOCAL = "20"  # in /proc/net/if_inet6
_SIOCGIFADDR = 0x8915  # Linux

_DISCARD = 9  # the port of datagrams that are never sent
_ELSEWHERE = (  # addresses for documentation: nobody has them, and nothing is sent
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)

Resolved = tuple[socket.AddressFamily, tuple[Any, ...]]


def join_address(host: str, port: int) -> str:
    """'host:port', an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolve(host: str, port: int) -> list[Resolved]:
    """The addresses of a host; numeric ones without asking the resolver. `OSError` if there are none."""
    if not 0 <= port < 65536:  # the resolver would take what is left of it in 16 bits
        raise UsageError(
            f"{port} is not a port", hint="Ports go from 1 to 65535; to listen, 0 picks a free one"
        )
    try:
        infos = await _look_up(host, port)
    except UnicodeError:  # of the idna codec: a label of it is empty or too long
        raise socket.gaierror(socket.EAI_NONAME, "it cannot be a host's name") from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in infos))


async def _look_up(host: str, port: int) -> list[tuple[Any, ...]]:
    flags = socket.AI_NUMERICSERV
    try:
        # As bytes: a str goes through the idna codec, whose import takes 1 ms.
        name = host.encode() if host.isascii() else host
        return socket.getaddrinfo(name, port, 0, socket.SOCK_STREAM, 0, flags | socket.AI_NUMERICHOST)
    except socket.gaierror:
        # In a thread of Python's: a child of a process in which libuv has started its own crashes at its end.
        return await asyncio.to_thread(socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM, 0, flags)


async def listen(host: str, port: int) -> socket.socket:
    """A non-blocking socket that listens on exactly the address given; port 0 picks a free one. What this
    process keeps at the port (`kept`) makes way.

    Raises:
        RendezvousError: the port is in use (says by whom, where that can be found), or the address is not
            one of this host.
    """
    if not host:
        raise RendezvousError(
            "no address to listen on", hint="Give one; '0.0.0.0' means all, if you mean that"
        )
    try:
        addresses = await resolve(host, port)
    except OSError as error:
        raise RendezvousError(f"cannot listen on '{host}': {describe(error)}") from None
    failure: OSError | None = None
    kept.let_go(port)
    for family, address in addresses:
        try:
            return listen_on(family, address, reuse=True, both=host == "::")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _in_use(str(address[0]), port) from error
            failure = failure or error  # a name may have an address that this host cannot use (IPv6 off)
    assert failure is not None
    if failure.errno == errno.EADDRNOTAVAIL:
        raise RendezvousError(
            f"cannot listen on {host}: it is not an address of this host ({socket.gethostname()})",
            hint="Run rank 0 on the host that MASTER_ADDR names, or name an address of this host",
        )
    raise RendezvousError(f"cannot listen on {join_address(host, port)}: {describe(failure)}")


def listen_on(family: int, address: Any, *, reuse: bool = False, both: bool = False) -> socket.socket:
    """A non-blocking socket that listens on one address. `OSError` where it cannot.

    Args:
        family: the address's.
        address: numeric; or of a Unix socket.
        reuse: also where connections of a listener before it are left.
        both: over IPv6, IPv4 as well.
    """
    sock = stream_socket(family)
    try:
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both))
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def stream_socket(family: int) -> socket.socket:
    """A non-blocking stream socket that children do not inherit, by whichever way they are made."""
    sock = socket.socket(family, socket.SOCK_STREAM | getattr(socket, "SOCK_CLOEXEC", 0))
    sock.setblocking(False)
    return own_socket(sock)


def is_in_use(error: RendezvousError) -> bool:
    """Whether `listen` raised it because another socket has the port."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE


async def connect(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket; tries every address of the host. `OSError` from the last one."""
    failure: OSError = OSError(f"'{host}' has no address")
    for family, address in await resolve(host, port):
        sock = stream_socket(family)
        try:
            await connect_socket(sock, address)
            if sock.getsockname() == sock.getpeername():
                # Linux may connect a socket to itself when nobody listens on an ephemeral port.
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def connect_socket(sock: socket.socket, address: Any) -> None:
    """Connect a non-blocking socket to an address, which is numeric. `OSError` where that fails.

    uvloop's `sock_connect` asks libuv's threads for the address, numeric or not (`_look_up` says why not).
    """
    try:
        sock.connect(address)
        return
    except BlockingIOError:
        pass
    loop, number = asyncio.get_running_loop(), sock.fileno()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(number, settle, ready, None)
    try:
        await ready
    finally:
        loop.remove_writer(number)
    if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))


def interface_address(name: str) -> str:
    """The first address of a network interface of this host, IPv4 before IPv6.

    Raises:
        UsageError: there is no such interface, or it has no address.
    """
    names = [known for _, known in socket.if_nameindex()]
    if name not in names:
        raise UsageError(f"there is no network interface '{name}'", hint=f"There are: {', '.join(names)}")
    with contextlib.suppress(OSError, ImportError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        import fcntl

        answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, interface = line.split()
            if interface == name and scope != _LINK_LOCAL:
                return str(ipaddress.IPv6Address(int(digits, 16)))
    raise UsageError(
        f"the network interface '{name}' has no address that could be found", hint="Set AIODIST_HOST instead"
    )


def describe(error: BaseException) -> str:
    """An error in one line: an OS error in the OS's words, without numbers."""
    if isinstance(error, AiodistError):
        return error.message
    if isinstance(error, OSError):
        if error.errno in EXHAUSTED and (lack := shortage(error)) is not None:
            return f"this process {lack.what}"
        if error.errno is not None and error.errno > 0 and not isinstance(error, socket.gaierror):
            return os.strerror(error.errno)
        return error.strerror or str(error)
    return str(error)


def _in_use(host: str, port: int) -> RendezvousError:
    owner = port_owner(port)
    by = f" by {owner}" if owner else ""
    return RendezvousError(
        f"port {port} on {host} is in use{by}",
        hint="Stop that process, or choose another port (MASTER_PORT, --master-port, --port)",
    )


def port_owner(port: int) -> str:
    """'pid 4711 (python)' of who listens on a port of this host; '' where /proc does not say."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return ""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it is another user's, or it is gone
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()) in inodes:
                    return f"pid {process.name} ({one_line((process / 'comm').read_bytes())})"
    return "a process of another user"


def outward() -> str:
    """The address that this host has towards others, by its routes; '' where they lead nowhere, or by several
    addresses and none of them to everywhere."""
    found = next(filter(None, (_own_address(family, there) for family, there in _ELSEWHERE)), "")
    if found:
        return found
    own = set(filter(None, (_own_address(family, there) for family, there in _neighbours())))
    return own.pop() if len(own) == 1 else ""


async def towards(host: str) -> str:
    """The address that this host has towards another, by its routes; '' where none leads there."""
    try:
        found = await resolve(host, _DISCARD)
    except OSError:
        return ""
    return _towards(found)


def towards_most(hosts: Iterable[str]) -> str:
    """The address that this host has towards most of these, by its routes; '' where none leads to any. One of
    the loopback only if it is so for all. Names are looked up, which may take a while."""
    found: Counter[str] = Counter()
    for host in hosts:
        with contextlib.suppress(OSError, UnicodeError):
            infos = socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM)
            found[_towards([(family, address) for family, _, _, _, address in infos])] += 1
    del found[""]
    outer = Counter({address: count for address, count in found.items() if not is_loopback(address)})
    return next((address for address, _ in (outer or found).most_common(1)), "")


def _towards(found: Iterable[Resolved]) -> str:
    return next(filter(None, (_own_address(family, str(address[0])) for family, address in found)), "")


def _neighbours() -> Iterator[tuple[int, str]]:
    """An address in each network that a route leads to, but for the default one. Linux; none elsewhere."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            network = int.from_bytes(int(line.split()[1], 16).to_bytes(4, sys.byteorder))
            if network:
                yield socket.AF_INET, str(ipaddress.IPv4Address(network + 1))
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/net/ipv6_route").read_text().splitlines():
            fields = line.split()
            there = ipaddress.IPv6Address(int(fields[0], 16))
            prefix = int(fields[1], 16)
            if 0 < prefix < 128 and not (there.is_link_local or there.is_multicast):
                yield socket.AF_INET6, str(there + 1)


def _own_address(family: int, there: str) -> str:
    """The address from which a datagram would go there; nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((there, _DISCARD))
            return str(sock.getsockname()[0])
    except OSError:
        return ""
