"""Pods of Kubernetes, as network namespaces with the exact variables: simulated."""

from __future__ import annotations

from tests.launchers.case import EACH_ALONE, TORCH_BIN, TWO_HOSTS, Case, Commands
from tests.launchers.ground import Ground


def _trainer(ground: Ground, script: list[str]) -> Commands:
    """Kubeflow's Trainer: one agent a pod."""
    bin, (a, _) = ground.environment("plain"), ground.hosts
    place = [f"PET_MASTER_ADDR={a}", "PET_MASTER_PORT=29500", "PET_NNODES=2", "PET_NPROC_PER_NODE=2"]
    return _pods(ground, place, "PET_NODE_RANK", [str(bin / "aiodist"), "run", *script])


def _pytorch_job(ground: Ground, script: list[str]) -> Commands:
    """One process a pod."""
    bin, (a, _) = ground.environment(*TORCH_BIN), ground.hosts
    place = [f"MASTER_ADDR={a}", "MASTER_PORT=23456", "WORLD_SIZE=2", "PET_NNODES=2", "PET_NPROC_PER_NODE=1"]
    return _pods(ground, place, "RANK PET_NODE_RANK", [str(bin / "python"), *script])


def _indexed_job(ground: Ground, script: list[str]) -> Commands:
    bin, (a, _) = ground.environment("plain"), ground.hosts
    place = [f"MASTER_ADDR={a}", "MASTER_PORT=29500", "WORLD_SIZE=2"]
    return _pods(ground, place, "JOB_COMPLETION_INDEX", [str(bin / "python"), *script])


def _pods(ground: Ground, place: list[str], ranks: str, command: list[str]) -> Commands:
    """A pod on each host, with variables of which those in `ranks` are its number."""
    lines = [
        ground.on(host, "env", *place, *(f"{name}={rank}" for name in ranks.split()), *command)
        for rank, host in enumerate(ground.hosts)
    ]
    return Commands(lines, {"AIODIST_SECRET": ground.mark * 2})


def _mpi_job(ground: Ground, script: list[str]) -> Commands:
    """The launcher's pod, with the operator's hostfile in its /etc; the workers' pods run sshd."""
    bin, (a, b) = ground.environment("plain"), ground.hosts
    etc = ground.folder / "etc"
    mount = f"mkdir -p {etc} && cp -a /etc/. {etc} && mkdir -p {etc}/mpi && mount --bind {etc} /etc"
    hosts = f"printf '{a} slots=2\\n{b} slots=2\\n' > /etc/mpi/hostfile"
    inside = ["unshare", "--mount", "sh", "-c", f'{mount} && {hosts} && exec "$@"', "sh"]
    line = [*inside, str(bin / "aiodist"), "launch", "--ssh", ground.ssh, *script]
    return Commands([ground.on(a, *line)], {"K_MPI_JOB_ROLE": "launcher"})


CASES = (
    Case("Kubeflow Trainer's pods (simulated)", _trainer, TWO_HOSTS),
    Case("PyTorchJob's pods (simulated)", _pytorch_job, EACH_ALONE),
    Case("MPIJob's pods (simulated)", _mpi_job, TWO_HOSTS),
    Case("indexed Job's pods (simulated)", _indexed_job, EACH_ALONE),
)
