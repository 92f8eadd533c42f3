"""Several hosts on one machine: network namespaces with virtual cables between them. Linux, as root.

Processes of different namespaces share no memory with each other: they find local peers by abstract Unix
sockets, which a namespace has for itself. So they are to aiodist what processes of different hosts are.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import unittest
from pathlib import Path
from types import TracebackType
from typing import Self

_NETWORK, _NETWORK_6 = "10.83.0", "fd83::"
_PORT = 29500  # of the store; in a new namespace nobody else has it
_CLONE_NEWNET = 0x40000000
_number = itertools.count()


class Hosts:
    """A context manager; leaving it takes the namespaces away. Processes in them have to end before.

    Args:
        count: of hosts; all are on one switch.
        rate: of every cable, each way, as `tc` writes it ('1gbit'); None does not limit it.
        ipv6: the hosts have IPv6 addresses, and no others.

    Raises:
        unittest.SkipTest: on entering: this user, or this machine, has no network namespaces.

    Attributes:
        count: of hosts.
        env: environment variables of the ranks: rank 0, on the first host, has the store.
    """

    def __init__(self, count: int, rate: str | None = None, *, ipv6: bool = False) -> None:
        self._ipv6 = ipv6
        self.env = {"MASTER_ADDR": self.address(0), "MASTER_PORT": str(_PORT), "AIODIST_STORE": ""}
        self.count = count
        self._rate = rate
        name = f"aiodist-{os.getpid()}-{next(_number)}"
        self._names = [f"{name}-{host}" for host in range(count)]
        self._made: list[str] = []

    def place(self, host: int) -> str:
        """A host's network namespace, as a path."""
        return f"/run/netns/{self._names[host]}"

    def enter(self, host: int) -> list[str]:
        """The words that a command on a host begins with."""
        return entering(self.place(host))

    def address(self, host: int) -> str:
        """A host's address, which all of them reach."""
        return f"{_NETWORK_6}{host + 1:x}" if self._ipv6 else f"{_NETWORK}.{host + 1}"

    def set_link_address(self, host: int, other: int, hardware: str | None) -> None:
        """Have one host believe that another has this hardware address; None: what it finds out by itself."""
        entry = [self.address(other), "dev", "eth0"]
        if hardware is None:
            _ip(self._names[host], "neigh", "del", *entry)
        else:
            _ip(self._names[host], "neigh", "replace", *entry, "lladdr", hardware, "nud", "permanent")

    def __enter__(self) -> Self:
        _sweep()
        try:
            for name in self._names:
                _run("ip", "netns", "add", name)
                self._made.append(name)
            self._connect()
        except (OSError, subprocess.CalledProcessError) as error:
            self._remove()
            words = getattr(error, "stderr", None) or error
            raise unittest.SkipTest(f"no network namespaces here: {words}".strip()) from error
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _connect(self) -> None:
        """Lay the cables; the first host has the switch."""
        first = self._names[0]
        _ip(first, "link", "add", "eth0", "type", "bridge")
        for host, name in enumerate(self._names):
            if host:
                port = f"port{host}"
                _ip(first, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip(first, "link", "set", port, "master", "eth0", "up")
                for end, device in ((first, port), (name, "eth0")):
                    self._limit(end, device)
            # nodad: an address that is looked for on the link first could not be bound meanwhile.
            width = ("/64", "nodad") if self._ipv6 else ("/24",)
            _ip(name, "address", "add", f"{self.address(host)}{width[0]}", "dev", "eth0", *width[1:])
            _ip(name, "link", "set", "eth0", "up")
            _ip(name, "link", "set", "lo", "up")

    def _limit(self, name: str, device: str) -> None:
        if self._rate is not None:
            limits = ["rate", self._rate, "burst", "256kb", "latency", "50ms"]
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limits)

    def _remove(self) -> None:
        while self._made:
            subprocess.run(["ip", "netns", "delete", self._made.pop()], check=False, capture_output=True)


def entering(place: str) -> list[str]:
    """The words that a command in a network namespace begins with."""
    return ["nsenter", f"--net={place}"]


def enter_here(place: str) -> None:
    """Take this process to a network namespace. It has one thread, or the others stay where they are."""
    with open(place, "rb") as opened:
        if ctypes.CDLL(None, use_errno=True).setns(opened.fileno(), _CLONE_NEWNET):  # os.setns: Python 3.12
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), place)


def _sweep() -> None:
    """Take away what a killed process has left."""
    places = Path("/run/netns")
    for place in places.glob("aiodist-*-*-*") if places.is_dir() else ():
        if not Path("/proc", place.name.split("-")[1]).exists():
            subprocess.run(["ip", "netns", "delete", place.name], check=False, capture_output=True)


def _ip(name: str, *arguments: str) -> None:
    _run("ip", "-n", name, *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
