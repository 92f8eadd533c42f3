"""The placement of this process: environment variables → rank, world, node and master. Pure.

The environment is an argument. The rules are a table, one row a launcher; the first row whose evidence is
there decides. Later launchers are more rows. Nothing is guessed that a variable does not say: a node's number
is never `rank // local size`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from aiodist.base.environment.address import plain_host
from aiodist.base.environment.lone_process import chosen
from aiodist.base.errors import UsageError

Environ = Mapping[str, str]


@dataclass(frozen=True)
class Placement:
    """A process's place in its job. None: the environment does not say.

    Attributes:
        rank: global rank.
        world_size: processes in the job.
        local_rank: rank on the node.
        local_world_size: processes on the node.
        node_rank: number of the node.
        node_count: nodes in the job.
        master_addr: host where the processes meet.
        master_port: port there.
        launcher: what started the process: a launcher's name, 'generic', 'arguments' or 'alone'.
        evidence: the variables that say so, 'RANK=3 WORLD_SIZE=8'.
    """

    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    node_count: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    launcher: str = "alone"
    evidence: str = ""


@dataclass(frozen=True)
class Launcher:
    """One row: how a launcher is recognised and which variables it sets; the first that is set counts.

    Args:
        name: for people.
        evidence: it is this launcher if all of these are set.
        any_of: … and, unless empty, at least one of these.
        local_ranks: has the global ranks of all processes on the node, '4,5,6', where nothing counts them.
        values: … and these variables have these values.
        master: the variables of the meeting place, where MASTER_ADDR and MASTER_PORT are not set.
        yields: AIODIST_ALONE=1 comes before it. Not before who was told its rank as such: a line in
            somebody's profile would make separate jobs of one of every job.
    """

    name: str
    evidence: tuple[str, ...]
    any_of: tuple[str, ...] = ()
    rank: tuple[str, ...] = ("RANK",)
    world_size: tuple[str, ...] = ("WORLD_SIZE",)
    local_rank: tuple[str, ...] = ("LOCAL_RANK",)
    local_world_size: tuple[str, ...] = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
    node_rank: tuple[str, ...] = ("GROUP_RANK", "NODE_RANK", "CROSS_RANK")
    node_count: tuple[str, ...] = ("GROUP_WORLD_SIZE", "NNODES", "CROSS_SIZE")
    local_ranks: str = ""
    values: tuple[tuple[str, str], ...] = ()
    master: tuple[str, str] = ("", "")
    yields: bool = False


_without_nodes = partial(
    Launcher, local_rank=(), local_world_size=(), node_rank=(), node_count=(), yields=True
)
"""A row for a launcher that says nothing of local ranks, or of nodes, unless it is said otherwise."""

LAUNCHERS = (
    Launcher(
        "environment",
        ("AIODIST_RANK",),
        rank=("AIODIST_RANK",),
        world_size=("AIODIST_WORLD_SIZE", "WORLD_SIZE"),
        local_rank=("AIODIST_LOCAL_RANK", "LOCAL_RANK"),
        local_world_size=("AIODIST_LOCAL_WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        node_rank=("AIODIST_NODE_RANK", "NODE_RANK"),
        node_count=("AIODIST_NNODES", "NNODES"),
    ),
    Launcher("aiodist", ("AIODIST_STORE", "RANK")),
    # Before Slurm and MPI: torchrun runs inside srun and mpirun.
    Launcher("torchrun", ("TORCHELASTIC_RUN_ID", "RANK")),
    Launcher("generic", ("RANK", "WORLD_SIZE")),
    Launcher(
        "Horovod",
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        rank=("HOROVOD_RANK",),
        world_size=("HOROVOD_SIZE",),
        local_rank=("HOROVOD_LOCAL_RANK",),
        local_world_size=("HOROVOD_LOCAL_SIZE",),
        node_rank=("HOROVOD_CROSS_RANK",),
        node_count=("HOROVOD_CROSS_SIZE",),
        yields=True,
    ),
    # Before Slurm: both start their own helpers by srun, where they can, and those have a task's variables.
    Launcher(
        "Open MPI",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        rank=("OMPI_COMM_WORLD_RANK",),
        world_size=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        node_rank=(),  # OMPI_COMM_WORLD_NODE_RANK is another number on the node
        node_count=(),
        yields=True,
    ),
    Launcher(
        "MPICH",  # and Intel MPI: Hydra is the launcher of both
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        rank=("PMI_RANK",),
        world_size=("PMI_SIZE",),
        local_rank=("MPI_LOCALRANKID",),
        local_world_size=("MPI_LOCALNRANKS",),
        node_rank=(),
        node_count=(),
        yields=True,
    ),
    # Of a step: in the shell of a batch script SLURM_PROCID is 0, and that is no rank.
    Launcher(
        "Slurm",
        ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        rank=("SLURM_PROCID",),
        world_size=("SLURM_STEP_NUM_TASKS",),
        local_rank=("SLURM_LOCALID",),
        local_world_size=(),
        local_ranks="SLURM_GTIDS",
        node_rank=("SLURM_NODEID",),
        node_count=("SLURM_STEP_NUM_NODES",),
        yields=True,
    ),
    _without_nodes(
        "JAX",
        ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"),
        rank=("JAX_PROCESS_ID",),
        world_size=("JAX_NUM_PROCESSES",),
    ),
    # A pod of Kubeflow's with one process; several are for `aiodist run`, which reads the same variables.
    _without_nodes(
        "Kubeflow",
        ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR"),
        rank=("PET_NODE_RANK",),
        world_size=("PET_NNODES",),
        node_rank=("PET_NODE_RANK",),
        node_count=("PET_NNODES",),
        values=(("PET_NPROC_PER_NODE", "1"),),
        master=("PET_MASTER_ADDR", "PET_MASTER_PORT"),
    ),
    # A pod of an indexed Job, which was told how many there are.
    _without_nodes(
        "indexed Job",
        ("JOB_COMPLETION_INDEX", "WORLD_SIZE"),
        rank=("JOB_COMPLETION_INDEX",),
    ),
    # One of these alone is a half-set environment: an error that says what is missing, not a world of 1.
    Launcher(
        "generic",
        (),
        any_of=("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"),
        yields=True,
    ),
)
_HINT = "Start with `aiodist run`, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


@dataclass
class _Reader:
    """A reader of numbers that remembers what was read: all of it, and what says which number."""

    environ: Environ
    seen: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def number(self, what: str, names: tuple[str, ...], *, least: int = 0) -> int | None:
        for name in names:
            text = self.environ.get(name, "")
            if not text:
                continue
            self.seen[name] = text
            try:
                value = int(text)
            except ValueError:
                raise UsageError(f"{name}={text!r} is not a number", hint=_HINT) from None
            if value < least:
                raise UsageError(f"{name}={text} must be at least {least}", hint=_HINT)
            self.said[what] = f"{name}={text}"
            return value
        return None

    def count(self, what: str, name: str) -> int | None:
        """The length of a list of numbers."""
        text = self.environ.get(name, "")
        if not text:
            return None
        self.seen[name] = text
        if not all(part.isdecimal() for part in text.split(",")):
            raise UsageError(f"{name}={text[:80]!r} is not a list of numbers", hint=_HINT)
        length = text.count(",") + 1
        self.said[what] = f"the {length} of {name}"
        return length

    @property
    def evidence(self) -> str:
        return " ".join(f"{name}={text}" for name, text in self.seen.items())


def placement(environ: Environ, rank: int = -1, world_size: int = -1) -> Placement:
    """A process's place, from explicit arguments first, then from the environment.

    Where both are arguments, what a launcher says of nodes and local ranks holds only if it speaks of the
    same place in the same world.

    Args:
        environ: the environment variables, `os.environ` say; an empty one counts as absent.
        rank: explicit global rank, -1 for none.
        world_size: explicit number of processes, -1 for none. 1 needs no rank: it is a job of its own.

    Raises:
        UsageError: a variable is missing, no number or out of range; names it and its value.
    """
    launcher = next((row for row in LAUNCHERS if _matches(row, environ)), None)
    master = _master(environ, launcher)
    by_choice = chosen(environ, world_size)
    if rank == -1 and by_choice and (world_size == 1 or launcher is None or launcher.yields):
        return _one_of_one((None, None), "alone", by_choice)
    if rank == 0 and world_size == 1:
        return _one_of_one(master, "arguments", f"rank={rank} world_size={world_size}")
    if rank >= 0 and world_size >= 0:
        return _by_arguments(environ, launcher, master, rank, world_size)
    if launcher is None:
        if rank == -1 and world_size == -1:
            return _one_of_one(master, "alone", "no launcher that is known here has given it a rank")
        launcher = Launcher("arguments", ())
    return _by_launcher(environ, launcher, master, rank, world_size)


def _by_arguments(
    environ: Environ,
    launcher: Launcher | None,
    master: tuple[str | None, int | None],
    rank: int,
    world_size: int,
) -> Placement:
    given = f"rank={rank} world_size={world_size}"
    if rank >= world_size:
        raise UsageError(
            f"rank={rank} is not in a world of world_size={world_size}",
            hint=f"Ranks go from 0 to {world_size - 1}",
        )
    said = None
    try:
        if launcher is not None and _agrees(environ, launcher, rank, world_size):
            said = _by_launcher(environ, launcher, master, rank, world_size)
    except UsageError:
        pass  # of another world, or without meaning; nobody needs it
    if said is None:
        return Placement(rank, world_size, None, None, None, None, *master, "arguments", given)
    return replace(said, launcher="arguments", evidence=given)


def _agrees(environ: Environ, launcher: Launcher, rank: int, world_size: int) -> bool:
    """Whether a launcher, where it says a rank or a size, says these."""
    reader = _Reader(environ)
    own_rank, own_size = reader.number("", launcher.rank), reader.number("", launcher.world_size)
    return own_rank in (None, rank) and own_size in (None, world_size)


def _by_launcher(
    environ: Environ,
    launcher: Launcher,
    master: tuple[str | None, int | None],
    rank: int,
    world_size: int,
) -> Placement:
    """The place that a launcher's variables say; the arguments that were given replace its rank and size."""
    reader = _Reader(environ)
    local_rank = reader.number("local rank", launcher.local_rank)
    local_size = reader.number("local size", launcher.local_world_size, least=1)
    local_size = local_size or reader.count("local size", launcher.local_ranks)
    node_rank = reader.number("node", launcher.node_rank)
    node_count = reader.number("nodes", launcher.node_count, least=1)
    given_rank = rank if rank >= 0 else reader.number("rank", launcher.rank)
    given_size = world_size if world_size >= 0 else reader.number("size", launcher.world_size, least=1)
    if given_size is None and node_count is not None and local_size is not None:
        given_size = node_count * local_size
        reader.said["size"] = f"{reader.said['nodes']} × {reader.said['local size']}"
    if given_rank is None and node_rank is not None and local_rank is not None and local_size is not None:
        given_rank = node_rank * local_size + local_rank
        if given_size is not None and given_size % local_size:
            raise UsageError(
                "RANK is not set, and the other variables do not give it: "
                f"{reader.said.get('size', f'size {given_size}')} is not a multiple of "
                f"{reader.said['local size']}",
                hint=_HINT,
            )
        reader.said["rank"] = f"the rank {given_rank}"
    arguments = _arguments(rank, world_size)
    given_rank, given_size = _complete(given_rank, given_size, arguments | reader.seen)
    for what, name, value in (("rank", "rank", rank), ("size", "world_size", world_size)):
        if value >= 0:
            reader.said[what] = f"{name}={value}"
    local, node = (local_rank, local_size), (node_rank, node_count)
    found = Placement(given_rank, given_size, *local, *node, *master, launcher.name, reader.evidence)
    _check(found, reader.said)
    return found


def _one_of_one(master: tuple[str | None, int | None], launcher: str, evidence: str) -> Placement:
    return Placement(0, 1, 0, 1, 0, 1, *master, launcher, evidence)


def _matches(row: Launcher, environ: Environ) -> bool:
    return (
        all(environ.get(name) for name in row.evidence)
        and (not row.any_of or any(environ.get(name) for name in row.any_of))
        and all(environ.get(name) == value for name, value in row.values)
    )


def _arguments(rank: int, world_size: int) -> dict[str, str]:
    """The arguments that were given, as text."""
    given = (("the argument rank", rank), ("the argument world_size", world_size))
    return {name: str(value) for name, value in given if value >= 0}


def _complete(rank: int | None, world_size: int | None, seen: dict[str, str]) -> tuple[int, int]:
    """Return both; `UsageError` where one is not known."""
    if rank is not None and world_size is not None:
        return rank, world_size
    missing = " and ".join(
        name for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)) if value is None
    )
    verb = "are" if rank is None and world_size is None else "is"
    others = ", ".join(f"{name}={text}" for name, text in seen.items())
    because = f", but {others}" if others else ", but MASTER_ADDR is" if rank is None else ""
    raise UsageError(f"{missing} {verb} not set{because}", hint=_HINT)


def _check(found: Placement, said: Mapping[str, str]) -> None:
    """Refuse numbers that contradict each other; `said`: what says which of them."""
    if found.world_size < 1:
        raise UsageError(f"world_size={found.world_size} must be at least 1")
    if found.rank >= found.world_size:
        raise UsageError(
            f"{said['rank']} is not in a world of {said['size']}",
            hint=f"Ranks go from 0 to {found.world_size - 1}",
        )
    for small, big, which, of in (
        (found.local_rank, found.local_world_size, "local rank", "local size"),
        (found.node_rank, found.node_count, "node", "nodes"),
    ):
        if small is not None and big is not None and small >= big:
            raise UsageError(f"{said[which]} is not below {said[of]}", hint=_HINT)
    if found.local_world_size is not None and found.local_world_size > found.world_size:
        raise UsageError(f"{said['local size']} is more than {said['size']}", hint=_HINT)


def _master(environ: Environ, launcher: Launcher | None) -> tuple[str | None, int | None]:
    """Where the processes meet: MASTER_ADDR and MASTER_PORT, else what the launcher has instead."""
    named = [("MASTER_ADDR", "MASTER_PORT"), ("", "") if launcher is None else launcher.master]
    address = next((plain_host(environ[name], name) for name, _ in named if environ.get(name)), None)
    return address, next((_port(environ, name) for _, name in named if environ.get(name)), None)


def _port(environ: Environ, name: str) -> int:
    text = environ[name]
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise UsageError(f"{name}={text!r} is not a port", hint="Ports go from 1 to 65535")
    return int(text)
