"""What a job is launched with: everything the command line says, checked, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Template

from aiodist.base.errors import UsageError
from aiodist.net.sockets import join_address

DEFAULT_PREFIX = "${host}:${rank}│ "


@dataclass(frozen=True)
class LaunchConfig:
    """One node's share of a job.

    Args:
        command: argv of every worker.
        nproc: workers on this node.
        nnodes: nodes that the job needs; each runs one agent.
        max_nodes: nodes that it takes at most, 0: no more than that. With more, node ranks are by arrival.
        last_call: seconds to wait for more than `nnodes` nodes before the job starts.
        node_rank: this node's number; None lets the order of arrival decide (rdzv-backend c10d).
        max_restarts: restarts that the whole job has, of single workers or of all together.
        go_on: what no restart mends does not end the job while any worker lives.
        master_addr: where the nodes meet, and MASTER_ADDR of the workers.
        master_port: likewise; None picks a free one (only with one node).
        job: name of the job; agents and workers of another name are refused. None picks one.
        role: torch's role name, exported as ROLE_NAME.
        told_by: the launcher by whose means node 0 tells where they meet; '': `master_addr` and port say it.
        host: name of this node for people; '': its short host name.
        local_addr: address of this node that peers are told, exported as AIODIST_HOST.
        log_dir: folder for the workers' output; None makes a temporary one if files are asked for.
        redirects: local rank → bits 1 (stdout) and 2 (stderr): to a file instead of the console.
        tee: likewise, to a file as well as to the console.
        shown: local ranks whose output goes to the console; None: all.
        prefix: template of the line prefix: ${host} ${rank} ${local_rank} ${node_rank} ${role_name}.
        meet_timeout: seconds to wait for the other nodes.
        node_timeout: seconds without a sign of life after which a node is lost.
        shutdown_timeout: seconds between SIGTERM and SIGKILL.
        signals: numbers of the signals that end the job.
        torch: torch makes groups of aiodist where a worker's program asks it for gloo.
        dashboard: a dashboard runs beside the job; the workers' output goes to files for it.
        leave_daemons: what a worker has started and has left its process group outlives it.
    """

    command: tuple[str, ...]
    nproc: int = 1
    nnodes: int = 1
    max_nodes: int = 0
    last_call: float = 30.0
    node_rank: int | None = 0
    max_restarts: int = 0
    go_on: bool = False
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    job: str | None = None
    role: str = "default"
    told_by: str = ""
    host: str = ""
    local_addr: str | None = None
    log_dir: str | None = None
    redirects: Mapping[int, int] = field(default_factory=dict)
    tee: Mapping[int, int] = field(default_factory=dict)
    shown: frozenset[int] | None = None
    prefix: str = DEFAULT_PREFIX
    meet_timeout: float = 300.0
    node_timeout: float = 15.0
    shutdown_timeout: float = 30.0
    signals: tuple[int, ...] = (15, 2, 1, 3)
    torch: bool = False
    dashboard: bool = False
    leave_daemons: bool = False

    def __post_init__(self) -> None:
        if self.nproc < 1:
            raise UsageError(f"--nproc-per-node must be at least 1, got {self.nproc}")
        if self.nnodes < 1:
            raise UsageError(f"--nnodes must be at least 1, got {self.nnodes}")
        if self.max_nodes and self.max_nodes < self.nnodes:
            raise UsageError(
                f"--nnodes {self.nnodes}:{self.max_nodes}: the most is less than the least",
                hint="Write MIN:MAX",
            )
        if self.node_rank is not None and not 0 <= self.node_rank < self.most:
            raise UsageError(
                f"--node-rank {self.node_rank} is outside a job of {self.most} node(s)",
                hint=f"Node ranks go from 0 to {self.most - 1}; --nnodes is the same on every node",
            )
        if self.max_restarts < 0:
            raise UsageError(f"--max-restarts must not be negative, got {self.max_restarts}")
        if not self.last_call >= 0:
            raise UsageError(f"last_call_timeout must not be negative, got {self.last_call:g}")
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise UsageError(f"--master-port {self.master_port} is not a port")
        if self.most > 1 and self.master_port is None and not self.told_by:
            raise UsageError("a job of several nodes needs --master-port", hint="The same on every node")
        if not self.shutdown_timeout >= 0:
            raise UsageError(f"--shutdown-timeout must not be negative, got {self.shutdown_timeout:g}")
        if not self.meet_timeout > 0:
            raise UsageError(f"the timeout to meet must be positive, got {self.meet_timeout:g}")
        self.prefix_of(rank=0, local_rank=0, node_rank=0, host="")

    @property
    def most(self) -> int:
        """Nodes that the job takes at most."""
        return self.max_nodes or self.nnodes

    @property
    def meeting_place(self) -> str:
        """Where the nodes meet, for people: 'host:port'."""
        return join_address(self.master_addr, self.master_port or 0)

    @property
    def admits_later(self) -> bool:
        """Whether nodes may come while the job runs: more of them, or one in another's place."""
        return self.most > 1 and (self.max_nodes > 0 or self.max_restarts > 0 or self.go_on)

    @property
    def shown_nodes(self) -> str:
        """--nnodes as it was written: '2', '1:4'."""
        return f"{self.nnodes}:{self.most}" if self.most > self.nnodes else str(self.nnodes)

    def prefix_of(self, *, rank: int | str, local_rank: int | str, node_rank: int, host: str) -> str:
        """The line prefix of one worker, or of several with 'ranks 0–3' as their rank.

        Raises:
            UsageError: the template names something unknown.
        """
        try:
            return Template(self.prefix).substitute(
                host=host, rank=rank, local_rank=local_rank, node_rank=node_rank, role_name=self.role
            )
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"line prefix {self.prefix!r} has an unknown or broken placeholder: {error}",
                hint="Known: ${host} ${rank} ${local_rank} ${node_rank} ${role_name}",
            ) from None

    def filed(self, local_rank: int, bit: int) -> bool:
        """Whether this stream of the worker (1 stdout, 2 stderr) is written to a file."""
        return bool((self.redirects.get(local_rank, 0) | self.tee.get(local_rank, 0)) & bit)

    def on_console(self, local_rank: int, bit: int) -> bool:
        """Whether this stream of the worker is shown."""
        if self.shown is not None and local_rank not in self.shown:
            return False
        return bool(self.tee.get(local_rank, 0) & bit) or not self.redirects.get(local_rank, 0) & bit

    @property
    def wants_files(self) -> bool:
        """Whether any worker's output goes to a file."""
        return any(self.filed(local, bit) for local in range(self.nproc) for bit in (1, 2))
