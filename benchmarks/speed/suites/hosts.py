"""Collectives between hosts whose cables are slow: network namespaces, two ranks in each; Linux, as root."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aiodist.testing.hosts import Hosts
from benchmarks.harness.cases import Case
from benchmarks.harness.crew import Crew, CrewError, free_port
from benchmarks.harness.link import AbsentError
from benchmarks.harness.peers import AIODIST, RING, Peer
from benchmarks.harness.run import Run, Step
from benchmarks.harness.turns import check, slowest

HOSTS = 4
EACH = 2  # ranks of a host
SIZE = HOSTS * EACH
RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}
WHAT = ("all_reduce", "broadcast", "all_gather")
_TURNS = {"100mbit": 1, "1gbit": 3}
_CABLE = "eth0"

# What Open MPI calls instead of ssh: it enters the namespace whose address it is given, under a host name of
# its own, as processes of one name share memory.
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec nsenter --net=/run/netns/%s-$((${host##*.} - 1)) unshare --uts sh -c "hostname host-${host##*.}; \\
  mkdir -p %s/$host; TMPDIR=%s/$host; export TMPDIR; $*"
"""


def suite_of(rate: str) -> str:
    """The name under which the figures of a rate are kept."""
    return f"hosts, {RATES[rate]}"


def hosts(run: Run) -> list[Step]:
    """One step for each rate."""
    rates = list(RATES)[: 1 if run.settings.quick else None]
    return [Step("hosts", RATES[rate], partial(_hosts, run, rate)) for rate in rates]


def _hosts(run: Run, rate: str) -> None:
    nbytes = 1 << 20 if run.settings.quick else 64 << 20
    with ExitStack() as stack:
        # The first one is the switch alone, so that each of the others has a cable of its own.
        network = stack.enter_context(Hosts(1 + HOSTS, rate))
        crews = _crews(run, network, stack)
        for what in WHAT:
            _measure(run, rate, Case(what, nbytes), crews)


def host_of(rank: int) -> int:
    """The host that a rank lives on."""
    return 1 + rank // EACH


def _crews(run: Run, network: Hosts, stack: ExitStack) -> dict[str, Crew]:
    """The connected ranks of everybody who can be made to run there; a note about the others."""
    addresses = [network.address(1 + host) for host in range(HOSTS)]
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmarks-hosts-"))
    crews: dict[str, Crew] = {}
    for peer in (AIODIST, *run.peers("gloo", "openmpi"), RING):
        run.progress.show(f"{peer.name} starts")
        launch = _launch(peer, network, Path(folder)) if peer.launcher is not None else None
        there = replace(peer, env={**peer.env, "GLOO_SOCKET_IFNAME": _CABLE})
        arguments: dict[str, Any] = {"addresses": addresses} if peer is RING else {}
        try:
            crew = Crew(there, SIZE, enter=lambda rank: network.enter(host_of(rank)), launch=launch)
            stack.callback(crew.close)
            crew.call("connect", port=free_port(), host=addresses[0], **arguments)
            crews[peer.name] = crew
        except (AbsentError, CrewError) as error:
            run.results.note(f"hosts without {peer.name}: {error}")
    return crews


def _launch(peer: Peer, network: Hosts, folder: Path) -> Callable[[list[str]], list[str]]:
    """How Open MPI starts its ranks on all hosts: by an agent in the place of ssh."""
    name = network.enter(0)[1].removeprefix("--net=/run/netns/").rpartition("-")[0]
    agent, hostfile = folder / "agent", folder / "hosts"
    agent.write_text(_AGENT % (name, folder, folder))
    agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
    hostfile.write_text("".join(f"{network.address(1 + host)} slots={EACH}\n" for host in range(HOSTS)))
    words = {"plm_ssh_agent": str(agent), "oob_tcp_if_include": _CABLE, "prte_if_include": _CABLE}
    prte = [word for name, value in words.items() for word in ("--prtemca", name, value)]
    mca = ["--mca", "btl", "self,sm,tcp", "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", _CABLE]
    mca += ["--mca", "mpi_yield_when_idle", "1"]  # as --oversubscribe: hosts share the cores of this one
    variables = [
        word for name in sorted({*peer.env, "PYTHONPATH", "OMP_NUM_THREADS"}) for word in ("-x", name)
    ]
    before = ["env", f"TMPDIR={folder}", str(peer.launcher), *prte, *mca, *variables]
    before += ["--hostfile", str(hostfile), "--map-by", f"ppr:{EACH}:node", "-n", str(SIZE)]
    return lambda program: [*network.enter(0), *before, *program]


def _measure(run: Run, rate: str, case: Case, crews: dict[str, Crew]) -> None:
    taken: dict[str, list[list[list[float]]]] = {}
    for name, crew in crews.items():
        run.progress.show(f"{name} prepares")
        try:
            check(crew.call, case)
            taken[name] = []
        except (AbsentError, CrewError) as error:
            run.results.note(f"hosts, {case.what} by {name}: {error}")
    for turn in range(1 if run.settings.quick else _TURNS[rate]):
        for name in list(taken):
            run.progress.show(f"{name} {turn + 1}")
            try:
                taken[name].append(crews[name].call("turn", samples=1, inner=1))
            except CrewError as error:
                run.results.note(f"hosts, {case.what} by {name}: {error}")
                del taken[name]
    for name, turns in taken.items():
        crews[name].call("drop")
        run.results.add(
            suite_of(rate), case.what, name, slowest(turns), ranks=SIZE, nbytes=case.nbytes, dtype=case.dtype
        )
