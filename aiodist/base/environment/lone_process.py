"""Whether others were started together with this process, though it would be a job of its own. Pure.

Separate jobs of one are the quietest failure of all: each trains by itself, ends well, and is wrong. So who
is about to be one looks for what launchers say that aiodist does not follow.

Certain are variables that a launcher gives to each process it starts: which one this is, and of how many.
One of the two without the other is worth a warning, and so is what also stands in the shell of a batch
script, or in a container that may be one of several. Launchers are looked at from the inside
out, and the first that has said which process this is decides, also if it says that there is one: Open MPI
and MPICH start their helpers by srun, whose variables reach the processes, and are not about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiodist.base.environment.tuning import switch

Environ = Mapping[str, str]
ALONE = "AIODIST_ALONE"


@dataclass(frozen=True)
class Company:
    """Evidence of other processes of this job.

    Attributes:
        said: a variable and its value, 'HOROVOD_SIZE=2'.
        certain: it is about this very process.
        hint: what to do about it.
    """

    said: str
    certain: bool
    hint: str


_SET = "Set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process"
_RUN = "Start the script by `aiodist run`, which reads PET_*"

# Which process this is, how many there are, and what a plain script of theirs needs; from the inside out.
_COUNTED = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", f"{_SET}: RANK=$HOROVOD_RANK WORLD_SIZE=$HOROVOD_SIZE …"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _SET),
    ("PMI_RANK", "PMI_SIZE", f"{_SET}: RANK=$PMI_RANK WORLD_SIZE=$PMI_SIZE …"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", f"{_SET}: RANK=$SLURM_PROCID …"),
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", f"{_SET}: RANK=$JAX_PROCESS_ID WORLD_SIZE=$JAX_NUM_PROCESSES …"),
)
_PODS = "PET_NNODES"  # of a pod of Kubeflow's, in which a launcher like ours is expected
_INDEX = "JOB_COMPLETION_INDEX"  # of a pod of an indexed Job: one of several, which may well be independent


def chosen(environ: Environ, world_size: int = -1) -> str:
    """The setting that makes this process a job of its own, 'AIODIST_ALONE=1'; '' where nothing does.

    Raises:
        UsageError: AIODIST_ALONE is neither yes nor no.
    """
    if world_size == 1:
        return "world_size=1"
    return f"{ALONE}={environ[ALONE]}" if switch(environ, ALONE) else ""


def company_of_script(environ: Environ) -> Company | None:
    """Evidence of others, for a process that nothing which aiodist follows has given a rank."""
    way_out = f"{ALONE}=1, or world_size=1 in the call, if it is meant to be a job of its own"
    if (counted := _counted(environ)) is not None:
        count, hint = counted
        if not _several(environ, count):
            return None
        return Company(f"{count}={environ[count]}", True, f"{hint}. {way_out}")
    if _several(environ, _PODS):
        return Company(f"{_PODS}={environ[_PODS]}", True, f"{_RUN}. {way_out}")
    return _vague(environ, ("SLURM_NTASKS", _PODS, "PET_NPROC_PER_NODE"), f"{ALONE}=1 says that it shall be")


def company_of_rank(environ: Environ) -> Company | None:
    """Evidence of a launcher that counts more, for a process with RANK=0 and WORLD_SIZE=1; else None."""
    if (counted := _counted(environ)) is None or not _several(environ, counted[0]):
        return None
    left_over = "Unset RANK and WORLD_SIZE if they were left over; one torchrun a node takes --nnodes"
    return Company(
        f"{counted[0]}={environ[counted[0]]}",
        False,
        f"{left_over}. {ALONE}=1 says that it is meant to be one",
    )


def company_of_agent(environ: Environ, workers: int) -> Company | None:
    """Evidence of others, for a launcher's agent that is to run a job of one node.

    Args:
        environ: the agent's own.
        workers: that it is to start.
    """
    nodes = "For one job start one agent a node, with --nnodes and --rdzv-endpoint host:port"
    hint = f"{nodes}. {ALONE}=1 if each is meant to be a job of its own"
    if environ.get("RANK") and _several(environ, "WORLD_SIZE"):  # a worker may well start a job
        return Company(f"RANK={environ['RANK']} WORLD_SIZE={environ['WORLD_SIZE']}", False, hint)
    if (counted := _counted(environ)) is not None:
        count, _ = counted
        return Company(f"{count}={environ[count]}", True, hint) if _several(environ, count) else None
    # As many tasks as workers, on one node, is how their cores are asked for.
    counts = ("SLURM_NTASKS",) if environ.get("SLURM_NTASKS") != str(workers) else ()
    return _vague(environ, (*counts, "SLURM_JOB_NUM_NODES"), hint)


def _counted(environ: Environ) -> tuple[str, str] | None:
    """The innermost launcher that says which process this is → where it says of how many, and a hint."""
    for which, count, hint in _COUNTED:
        if environ.get(which) and environ.get(count):
            return count, hint
    return None


def _vague(environ: Environ, counts: tuple[str, ...], hint: str) -> Company | None:
    names = [count for _, count, _ in _COUNTED if _several(environ, count)]
    names += [which for which, _, _ in _COUNTED if environ.get(which, "").strip() not in ("", "0")]
    names += [name for name in counts if _several(environ, name)]
    names += [_INDEX] if environ.get(_INDEX) else []
    return Company(f"{names[0]}={environ[names[0]]}", False, hint) if names else None


def _several(environ: Environ, name: str) -> bool:
    """Whether a count is of more than one: '2', also '1:4' and 'gpu'."""
    return environ.get(name, "").strip().rpartition(":")[2] not in ("", "0", "1")
