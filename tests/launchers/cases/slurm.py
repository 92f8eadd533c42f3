"""Slurm: a rank a task, an agent a node, in a step, a batch job and an allocation."""

from __future__ import annotations

from tests.launchers.case import TWO_HOSTS, Case, Commands
from tests.launchers.ground import ROOT, Ground
from tests.launchers.slurm import Slurm


def _job(ground: Ground, line: list[str], **env: str) -> Commands:
    slurm = Slurm(ground)
    told = {"SLURM_CONF": str(slurm.conf), "AIODIST_SECRET": ground.mark * 2, **env}
    return Commands([ground.on(ground.hosts[0], *line)], told, slurm.daemons, slurm.ready)


_STEP = ["-N2", "--ntasks-per-node=2", "--kill-on-bad-exit=1"]
_AGENTS = ["-N2", "--ntasks-per-node=1", "--kill-on-bad-exit=0"]


def _srun(ground: Ground, script: list[str]) -> Commands:
    return _job(ground, ["srun", *_STEP, str(ground.environment("plain") / "python"), *script])


def _srun_pmi2(ground: Ground, script: list[str]) -> Commands:
    python = ground.environment("mpich", "mpich", "mpi4py") / "python"
    return _job(ground, ["srun", "--mpi=pmi2", *_STEP, str(python), *script])


def _srun_mpi(ground: Ground, script: list[str]) -> Commands:
    """MPI itself, between the tasks."""
    return _srun_pmi2(ground, [*script, "--backend", "mpi"])


def _agents(ground: Ground, script: list[str]) -> Commands:
    agent = [str(ground.environment("plain") / "aiodist"), "run", "--nproc-per-node", "2"]
    return _job(ground, ["srun", *_AGENTS, *agent, *script])


def _sbatch(ground: Ground, script: list[str]) -> Commands:
    """examples/slurm/tasks.sbatch, of which the command line changes the numbers."""
    return _batch(ground, "tasks.sbatch", ["--ntasks-per-node=2"], script)


def _sbatch_agents(ground: Ground, script: list[str]) -> Commands:
    """examples/slurm/job.sbatch, likewise."""
    return _batch(ground, "job.sbatch", ["--cpus-per-task=2"], script)


def _batch(ground: Ground, name: str, options: list[str], script: list[str]) -> Commands:
    """Waits for the job, and prints what it wrote."""
    bin = ground.environment("plain")
    out = ground.folder / "sbatch.out"
    out.write_text("")
    submit = ["sbatch", "--wait", "-Q", "-o", str(out), *options, str(ROOT / "examples" / "slurm" / name)]
    show = f'tail -n +1 -f {out} & shown=$!; "$@"; code=$?; sleep 0.3; kill $shown; exit $code'
    line = ["sh", "-c", show, "sh", *submit, *script]
    return _job(ground, line, PATH=f"{bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")


def _salloc(ground: Ground, script: list[str]) -> Commands:
    """In an allocation, whose shell is on the first host, srun starts the tasks."""
    python = str(ground.environment("plain") / "python")
    return _job(ground, ["salloc", "-Q", "-N2", "srun", *_STEP, python, *script])


def _salloc_mpiexec(ground: Ground, script: list[str]) -> Commands:
    """In an allocation, MPICH's mpiexec finds the hosts, and starts its proxies by srun."""
    bin = ground.environment("mpich", "mpich", "mpi4py")
    mpiexec = [str(bin / "mpiexec"), "-iface", "eth0", "-ppn", "2", "-n", "4", str(bin / "python")]
    return _job(ground, ["salloc", "-Q", "-N2", "--ntasks-per-node=2", *mpiexec, *script])


CASES = (
    Case("srun (Slurm 22.05), 2 hosts", _srun, TWO_HOSTS),
    Case("srun --mpi=pmi2, 2 hosts", _srun_pmi2, TWO_HOSTS),
    Case("srun --mpi=pmi2, backend mpi (MPICH 5), 2 hosts", _srun_mpi, TWO_HOSTS, mpi=True),
    Case("sbatch examples/slurm/tasks.sbatch, 2 hosts", _sbatch, TWO_HOSTS),
    Case("sbatch examples/slurm/job.sbatch, 2 hosts", _sbatch_agents, TWO_HOSTS),
    Case("salloc, srun, 2 hosts", _salloc, TWO_HOSTS),
    Case("salloc, mpiexec (MPICH 5), 2 hosts", _salloc_mpiexec, TWO_HOSTS),
    Case("aiodist run in srun, 2 hosts", _agents, TWO_HOSTS),
)
