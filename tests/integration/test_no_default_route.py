"""`aiodist launch` on hosts without a default route: network namespaces, and a stand-in for ssh into them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.testing.hosts import Hosts
from tests.levels import COSTLY
from tests.processes import run_to_end

ROOT = Path(__file__).parents[2]
PATIENCE = 200.0
pytestmark = [
    pytest.mark.timeout(250),
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root has namespaces"),
]

PROGRAM = """
import os
import numpy as np
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        x = np.full(4, pg.rank + 1.0)
        await pg.all_reduce(x)
        print("rank", pg.rank, "sum", int(x[0]), "store", os.environ["AIODIST_STORE"], flush=True)

dist.run(main())
"""
SSH = """#!/bin/sh
for word; do host=$command; command=$word; done
case $host in
{cases}
*) echo "ssh: Could not resolve hostname $host" >&2; exit 255 ;;
esac
cd /
exec nsenter --net=$place env -i HOME="$HOME" PATH="$PATH" $connection sh -c "$command"
"""


class Ground:
    """Two hosts with one network in common. The first has another network, too, and the launcher.

    Args:
        folder: for files.
        hosts: entered.
    """

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.hosts = hosts
        self._folder = folder
        for words in (
            ["link", "add", "other0", "type", "bridge"],
            ["address", "add", "10.99.0.1/24", "dev", "other0"],
            ["link", "set", "other0", "up"],
        ):
            subprocess.run([*hosts.enter(0), "ip", *words], check=True)
        assert not subprocess.run(
            [*hosts.enter(0), "ip", "route", "get", "192.0.2.1"], capture_output=True, check=False
        ).stdout
        self.script = folder / "script.py"
        self.script.write_text(PROGRAM)

    def launch(
        self, names: str, connections: dict[str, str], *words: str, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Launch from the first host.

        Args:
            names: of the hosts, as of -H.
            connections: by host, the address at which its ssh server was reached; '': it does not say.
        """
        cases = []
        for host, server in connections.items():
            said = f"SSH_CONNECTION='10.83.0.1 5 {server} 22'" if server else "NOTHING="
            place = self.hosts.place(0 if host == "a" else 1)
            cases.append(f"{host}) place={place}; connection={shlex.quote(said.replace(chr(39), ''))} ;;")
        ssh = self._folder / "ssh.sh"
        quoted = SSH.replace("$connection sh", '"$connection" sh')
        ssh.write_text(quoted.format(cases="\n".join(cases)))
        ssh.chmod(0o755)
        command = [sys.executable, "-m", "aiodist", "launch", "-H", names, "--ssh", str(ssh), *words]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIODIST_")}
        environ = {**kept, "PYTHONPATH": str(ROOT), "AIODIST_TIMEOUT": "60", **more}
        return run_to_end([*self.hosts.enter(0), *command, str(self.script)], environ, PATIENCE)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with Hosts(2) as hosts:
        yield Ground(tmp_path, hosts)


def well(ended: subprocess.CompletedProcess[str]) -> None:
    """All took part, and the store is where both reach it."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank in (0, 1):
        (line,) = (line for line in ended.stdout.splitlines() if f"rank {rank} sum 3" in line)
        assert line.split()[-1].startswith("10.83.0.1:"), line


@pytest.mark.slow(COSTLY)
def test_the_first_host_is_this_one(ground: Ground) -> None:
    """No ssh has come to it, so its routes to the others say where they reach it."""
    well(ground.launch("localhost:1,b:1", {"b": "10.83.0.2"}))


@pytest.mark.slow(COSTLY)
def test_the_first_host_is_reached_by_a_network_that_the_others_have_not(ground: Ground) -> None:
    well(ground.launch("a:1,b:1", {"a": "10.99.0.1", "b": "10.83.0.2"}))


@pytest.mark.slow("more of the same: the address is named")
def test_where_no_route_says_it_the_operator_does(ground: Ground) -> None:
    ended = ground.launch("localhost:1,b:1", {"b": ""})
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert "no address towards others, or several, by its routes" in said
    assert "--local-addr" in said and "AIODIST_SOCKET_IFNAME" in said
    well(ground.launch("localhost:1,b:1", {"b": ""}, "--local-addr", "10.83.0.1"))
    well(ground.launch("localhost:1,b:1", {"b": ""}, AIODIST_SOCKET_IFNAME="eth0"))
    well(ground.launch("a:1,b:1", {"a": "10.99.0.1", "b": ""}, AIODIST_SOCKET_IFNAME="eth0"))
    wrong = ground.launch("localhost:1,b:1", {"b": ""}, AIODIST_SOCKET_IFNAME="none0")
    assert wrong.returncode == 2 and "there is no network interface 'none0'" in wrong.stderr


ASKS = """
from aiodist.net.sockets import outward, towards_most
found = towards_most(["10.83.0.2", "10.99.0.7", "10.83.0.9"])
print(outward() or "-", found, towards_most(["192.0.2.1"]) or "-")
"""


def test_the_address_of_a_host_follows_from_its_routes(ground: Ground) -> None:
    """The second host has one network, and so one address; the first has two, and none that does for all."""
    said = []
    for host in (0, 1):
        command = [*ground.hosts.enter(host), sys.executable, "-c", ASKS]
        done = run_to_end(command, {**os.environ, "PYTHONPATH": str(ROOT)}, PATIENCE)
        said.append(done.stdout.split())
    assert said == [["-", "10.83.0.1", "-"], ["10.83.0.2", "10.83.0.2", "-"]]
