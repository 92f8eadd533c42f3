"""IPv6 wherever an address goes: on ::1, and between two hosts that have nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiodist.cli.main import main
from aiodist.testing.hosts import Hosts
from tests.launchers.sshd import lay
from tests.levels import COSTLY, MORE, few
from tests.ports import free_port, needs_ipv6
from tests.processes import run_to_end

ROOT = Path(__file__).parents[2]
HELLO = str(ROOT / "examples" / "hello.py")
RANK = re.compile(r"rank (\d) of (\d): local rank \d of \d, node (\d) of (\d), .* sum (\d+)")
FOREIGN = ("AIODIST_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "PET_")
ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)},
    "AIODIST_SECRET": "known to these tests alone",
    "PYTHONPATH": str(ROOT),
}


def together(commands: list[list[str]], environs: list[dict[str, str]]) -> str:
    """Run commands at the same time to their end → what they printed."""
    running = [
        subprocess.Popen(
            command,
            env={**ENVIRON, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, environ in zip(commands, environs, strict=True)
    ]
    said = []
    try:
        for process in running:
            said.append(process.communicate(timeout=120)[0])
            assert process.returncode == 0, said
    finally:
        for process in running:
            process.kill()
            process.communicate()
    return "".join(said)


def ranks(said: str) -> list[tuple[str, ...]]:
    """Each rank's line: rank, size, node, nodes, sum."""
    return RANK.findall(said)


def agents(where: str, *words: str) -> list[list[str]]:
    """The agents of two nodes that meet there, with a rank each."""
    command = [sys.executable, "-m", "aiodist", "run", "--nnodes=2", *words]
    return [[*command, f"--node-rank={node}", f"--rdzv-endpoint={where}", HELLO] for node in range(2)]


TWO_NODES = [("0", "2", "0", "2", "3"), ("1", "2", "1", "2", "3")]


@pytest.mark.slow(COSTLY)
def test_agents_meet_there_and_tell_their_address() -> None:
    needs_ipv6()
    commands = agents(f"[::1]:{free_port()}", "--local-addr=[::1]")
    assert ranks(together(commands, [{"AIODIST_TRANSPORT": "tcp"}] * 2)) == TWO_NODES


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("address", few(["::1", "[::1]"], ["[::1]"]))
def test_ranks_meet_there(address: str) -> None:
    needs_ipv6()
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    environs = [{**meeting, "RANK": str(rank), "AIODIST_TRANSPORT": "tcp"} for rank in range(2)]
    found = ranks(together([[sys.executable, HELLO]] * 2, environs))
    assert [line[:2] for line in found] == [("0", "2"), ("1", "2")]


@pytest.mark.slow(COSTLY)
def test_hosts_with_nothing_else() -> None:
    with Hosts(2, ipv6=True) as hosts:
        commands = [
            [*hosts.enter(node), *command]
            for node, command in enumerate(agents(f"[{hosts.address(0)}]:29500"))
        ]
        assert ranks(together(commands, [{}] * 2)) == TWO_NODES
        told = [
            {**hosts.env, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": f"[{hosts.address(0)}]"}
            for rank in range(2)
        ]
        found = ranks(together([[*hosts.enter(rank), sys.executable, HELLO] for rank in range(2)], told))
        assert found == TWO_NODES


@pytest.mark.slow(MORE)
def test_a_store_is_served_there_under_an_address_that_can_be_handed_on() -> None:
    needs_ipv6()
    command = [sys.executable, "-m", "aiodist", "store", "--host", "[::1]", "--port", "0"]
    with subprocess.Popen(command, env=ENVIRON, stdout=subprocess.PIPE, text=True) as store:
        try:
            assert store.stdout is not None
            place = store.stdout.readline().strip()
            assert re.fullmatch(r"\[::1\]:\d+", place)
            environs = [{"AIODIST_STORE": place, "RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
            found = ranks(together([[sys.executable, HELLO]] * 2, environs))
            assert [line[:2] for line in found] == [("0", "2"), ("1", "2")]
        finally:
            store.terminate()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["run", "--nnodes=2", "--node-rank=0", "--master-addr=fe80::1%eth0", HELLO],
            "--master-addr=fe80::1%eth0 is",
        ),
        (["run", "--local-addr=fe80::1", HELLO], "--local-addr=fe80::1 is a link-local address"),
        (["run", "--rdzv-endpoint=[fe80::1]:1", HELLO], "--rdzv-endpoint=[fe80::1] is a link-local address"),
        (
            ["run", "--rdzv-endpoint=::1:29500", HELLO],
            "'::1:29500' is not host:port. For IPv6 write [address]:port",
        ),
        (["store", "--host", "fe80::1%eth0"], "--host=fe80::1%eth0 is a link-local address"),
        (["dashboard", "--host", "[fe80::1]"], "--host=[fe80::1] is a link-local address"),
        (["launch", "-H", "::1:2", HELLO], "user@host:4 or [::1]:4"),
    ],
)
def test_an_address_without_meaning_is_refused(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert words in capsys.readouterr().err


def test_who_is_not_there_is_named_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    needs_ipv6()
    port = free_port()
    options = ["--nnodes=2", "--node-rank=0", "--rdzv-conf=timeout=0.2", f"--rdzv-endpoint=[::1]:{port}"]
    assert main(["run", *options, HELLO]) == 1
    assert f"node 1 of 2 did not come to [::1]:{port} within 0.2 s" in capsys.readouterr().err


@pytest.mark.slow("a real sshd on each of two hosts")
def test_agents_that_ssh_starts_there(tmp_path: Path) -> None:
    """From one host, the other two by their addresses: by -H and by a hostfile, with and without a login."""
    if os.geteuid():
        pytest.skip("needs root")
    server = lay(tmp_path, "TEST_OF=ipv6")
    client = f"ssh -F {tmp_path}/ssh_config -o ConnectionAttempts=60"
    servers = []
    with Hosts(3, ipv6=True) as hosts:
        launch = [*hosts.enter(0), sys.executable, "-m", "aiodist", "launch"]
        launch += ["--ssh", client, "-x", "PYTHONPATH"]
        first, second = (f"[{hosts.address(host)}]" for host in (1, 2))
        (tmp_path / "hostfile").write_text(f"root@{first} slots=1\n{second}:1  # the other\n")
        try:
            for host in (1, 2):
                started = subprocess.Popen([*hosts.enter(host), *server], stdin=subprocess.DEVNULL)
                servers.append(started)
            said = together([[*launch, "-H", f"{first}:1,root@{second}", HELLO]], [{}])
            assert ranks(said) == TWO_NODES
            told = together([[*launch, "--hostfile", str(tmp_path / "hostfile"), HELLO]], [{}])
            assert ranks(told) == TWO_NODES
            once = ["--ssh", f"ssh -F {tmp_path}/ssh_config -p 2222"]
            wrong = run_to_end([*launch, *once, "-H", first, HELLO], ENVIRON, 120)
            assert wrong.returncode == 1
            assert f"{first}: no ssh server listens there" in wrong.stderr, wrong.stderr
        finally:
            for started in servers:
                started.terminate()
                started.wait()
