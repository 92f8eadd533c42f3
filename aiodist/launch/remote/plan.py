"""The plan of a launch: everything that `aiodist launch` was asked for, checked, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiodist.launch.remote.hosts import Host


@dataclass(frozen=True)
class Plan:
    """One job on several hosts.

    Attributes:
        hosts: where, node 0 first.
        argv: of `aiodist run` on each host, without the number of workers.
        nproc: workers on a host that says no number.
        environ: variables for all agents; the secret is one.
        folder: to work in, there.
        ssh: the command.
        python: path of the interpreter there.
        version: of aiodist here; every host must have it.
        least: nodes that the job needs; 0: all of them.
        most: nodes that it takes; 0: no more than that.
        timeout: seconds for all agents to say a word.
        discovery: command that names the hosts of the moment; '' for none.
        include, exclude: filters of what it names.
        local_addr: address of node 0's host, where the others reach it; '': its routes to them say it.
    """

    hosts: Sequence[Host]
    argv: Sequence[str]
    nproc: str
    environ: Mapping[str, str] = field(repr=False)
    folder: str
    ssh: str
    python: str
    version: str
    least: int = 0
    most: int = 0
    timeout: float = 60.0
    discovery: str = ""
    include: str = ""
    exclude: str = ""
    local_addr: str = ""
