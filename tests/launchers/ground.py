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

    def environment(self, name: str, *packages: str, options: Sequence[str] = ()) -> Path:
        """The `bin` folder of a virtual environment with this checkout and these packages."""
        place = self.folder / name
        done = place / "done"
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(place))
            pip = [str(place / "bin" / "pip"), "install", "-q", *options]
            if packages:
                _run(*pip, *packages)
            _run(*pip, f"{ROOT}[examples]")
            done.touch()
        return place / "bin"

    def debian(self, program: str, *packages: str) -> str:
        """The path of a program of Debian's; installs it where that is allowed."""
        if shutil.which(program) is None:
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                raise unittest.SkipTest(f"there is no {program}")
            environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            _run("apt-get", "update", "-qq", env=environ)
            _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, env=environ)
        found = shutil.which(program)
        if found is None:
            raise unittest.SkipTest(f"{packages} bring no {program}")
        return found

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

    def ssh(self) -> Path:
        """A program that does what ssh does, between these hosts: `ssh [options] host command…`."""
        path = self.folder / f"ssh-{self._bridge or 'x'}"
        names = "|".join(self.hosts)
        lines = [
            "#!/bin/bash",
            "while :; do case $1 in -o|-p|-l|-i) shift 2;; -*) shift;; *) break;; esac; done",
            "host=${1##*@}; shift",
            f'[[ $host =~ ^({names})$ ]] || {{ echo "Could not resolve $host" >&2; exit 255; }}',
            f"address={_NETWORK}.1; [ $host = {_NAMES[1]} ] && address={_NETWORK}.2",
            f'export SSH_CONNECTION="{_NETWORK}.254 5 $address 22"',
            f'exec ip netns exec {self._bridge}-$host unshare --uts sh -c \'hostname "$0"; exec sh -c "$1"\' '
            '"$host" "$*"',
        ]
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)
        return path

    def _make(self) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise unittest.SkipTest("two hosts need root and iproute2")
        self._bridge = f"ad{self.mark[:6]}"
        bridge = self._bridge
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{_NETWORK}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        table = ["127.0.0.1 localhost", *(f"{_NETWORK}.{n} {name}" for n, name in enumerate(_NAMES, 1))]
        for number, name in enumerate(_NAMES, 1):
            space, cable = f"{bridge}-{name}", f"{bridge}{number}"
            self._made.append(space)
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", cable, "master", bridge, "up")
            _run("ip", "-n", space, "addr", "add", f"{_NETWORK}.{number}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "route", "add", "default", "via", f"{_NETWORK}.254")
            names = Path("/etc/netns", space)
            names.mkdir(parents=True, exist_ok=True)
            (names / "hosts").write_text("\n".join(table) + "\n")

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for space in self._made:
            subprocess.run(["ip", "netns", "del", space], check=False)
            shutil.rmtree(f"/etc/netns/{space}", ignore_errors=True)
        if self._made:
            subprocess.run(["ip", "link", "del", self._bridge], check=False)
        self._made.clear()


def _run(*command: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise unittest.SkipTest(f"{' '.join(command)[:80]}: {words[-1] if words else done.returncode}")
