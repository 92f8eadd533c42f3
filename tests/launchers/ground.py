"""Where the launchers run: virtual environments with their packages, and two hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import unittest
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.launchers.found import check
from tests.launchers.sshd import Sshd

ROOT = Path(__file__).parents[2]
MARK = "AIODIST_LAUNCHER_TEST"
"""Variable by which a case's processes are found."""

_NAMES = ("nodea", "nodeb")
_NETWORK = "10.78.0"


class Ground:
    """Environments and hosts; a context manager, which takes the hosts away.

    Args:
        folder: for virtual environments; they are used again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self._made: list[str] = []
        self._bridge = ""
        self._sshd: Sshd | None = None

    def environment(self, name: str, *packages: str, options: Sequence[str] = ()) -> Path:
        """The `bin` folder of a virtual environment with this checkout and these packages."""
        place = self.folder / name
        done = place / "done"
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)
            check(sys.executable, "-m", "venv", str(place))
            pip = [str(place / "bin" / "pip"), "install", "-q", *options]
            if packages:
                check(*pip, *packages)
            check(*pip, "-e", f"{ROOT}[examples]")
            done.touch()
        return place / "bin"

    # -- two hosts ------------------------------------------------------------------------------

    @property
    def hosts(self) -> tuple[str, str]:
        """The names of two hosts, which resolve on both; made when they are first asked for."""
        if not self._made:
            self._make()
        return _NAMES

    def on(self, host: str, *command: str) -> list[str]:
        """A command line that runs a command on a host, under its name."""
        assert host in self.hosts
        space = f"{self._bridge}-{host}"
        naming = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host]
        return ["ip", "netns", "exec", space, *naming, *command]

    @property
    def sshd(self) -> Sshd:
        """Real sshds on the hosts, and a client for them; started when first asked for."""
        if self._sshd is None:
            lines = {f"{_NETWORK}.{number}": self.on(host) for number, host in enumerate(self.hosts, 1)}
            self._sshd = Sshd(self.folder / "sshd", lines, f"{MARK}={self.mark}")
        return self._sshd

    @property
    def ssh(self) -> str:
        """The path of the client."""
        return str(self.sshd.client)

    def pull_cable(self, host: str) -> None:
        """Take a host off the network; it is told nothing, as when a cable is pulled."""
        number = self.hosts.index(host) + 1
        check("ip", "link", "set", f"{self._bridge}{number}", "nomaster")

    def plug_cable(self, host: str) -> None:
        """Put it back."""
        number = self.hosts.index(host) + 1
        check("ip", "link", "set", f"{self._bridge}{number}", "master", self._bridge)

    def _make(self) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise unittest.SkipTest("two hosts need root and iproute2")
        self._bridge = f"ad{self.mark[:6]}"
        bridge = self._bridge
        check("ip", "link", "add", bridge, "type", "bridge")
        check("ip", "addr", "add", f"{_NETWORK}.254/24", "dev", bridge)
        check("ip", "link", "set", bridge, "up")
        table = ["127.0.0.1 localhost", *(f"{_NETWORK}.{n} {name}" for n, name in enumerate(_NAMES, 1))]
        for number, name in enumerate(_NAMES, 1):
            space, cable = f"{bridge}-{name}", f"{bridge}{number}"
            self._made.append(space)
            check("ip", "netns", "add", space)
            check("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            check("ip", "link", "set", cable, "master", bridge, "up")
            check("ip", "-n", space, "addr", "add", f"{_NETWORK}.{number}/24", "dev", "eth0")
            check("ip", "-n", space, "link", "set", "eth0", "up")
            check("ip", "-n", space, "link", "set", "lo", "up")
            check("ip", "-n", space, "route", "add", "default", "via", f"{_NETWORK}.254")
            names = Path("/etc/netns", space)
            names.mkdir(parents=True, exist_ok=True)
            (names / "hosts").write_text("\n".join(table) + "\n")

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sshd is not None:
            self._sshd.close()
            self._sshd = None
        for space in self._made:
            subprocess.run(["ip", "netns", "del", space], check=False)
            shutil.rmtree(f"/etc/netns/{space}", ignore_errors=True)
        if self._made:
            subprocess.run(["ip", "link", "del", self._bridge], check=False)
        self._made.clear()
