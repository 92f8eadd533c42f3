"""torchrun, and those that are like it or start it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.launchers.case import ONE_HOST, TORCH, TORCH_BIN, TWO_HOSTS, WITH_TESTS, Case, Commands, path_with
from tests.launchers.found import debian
from tests.launchers.ground import Ground

_HERE = Path(__file__).parents[1]


def _torchrun(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment(*TORCH_BIN)
    return Commands([[str(bin / "torchrun"), "--standalone", "--nproc-per-node", "2", *script]])


def _torchrun_c10d(ground: Ground, script: list[str]) -> Commands:
    a, _ = ground.hosts
    common = ["--rdzv-backend", "c10d", "--rdzv-id", "j", "--rdzv-endpoint", f"{a}:29544"]
    return _torchruns(ground, [[*common, "--local-addr", host] for host in ground.hosts], script)


def _torchrun_static(ground: Ground, script: list[str]) -> Commands:
    a, _ = ground.hosts
    common = ["--master-addr", a, "--master-port", "29545"]
    return _torchruns(ground, [[*common, "--node-rank", rank] for rank in ("0", "1")], script)


def _torchruns(ground: Ground, each: list[list[str]], script: list[str]) -> Commands:
    bin = ground.environment(*TORCH_BIN)
    common = [str(bin / "torchrun"), "--nnodes", "2", "--nproc-per-node", "2"]
    lines = [
        ground.on(host, *common, *words, *script) for host, words in zip(ground.hosts, each, strict=True)
    ]
    return Commands(lines, {"AIODIST_SECRET": ground.mark * 2})


def _torch_launch(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment(*TORCH_BIN)
    launch = [str(bin / "python"), "-m", "torch.distributed.launch", "--master-port", "29534"]
    return Commands([[*launch, "--nproc-per-node", "2", *script]])


_ACCELERATE = ["launch", "--multi_gpu", "--mixed_precision", "no", "--dynamo_backend", "no"]


def _accelerate(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment(*TORCH_BIN)
    words = [*_ACCELERATE, "--num_processes", "2", "--num_machines", "1"]
    return Commands([[str(bin / "accelerate"), *words, *script]], {"ACCELERATE_USE_CPU": "1"})


def _accelerate_two(ground: Ground, script: list[str]) -> Commands:
    bin, (a, _) = ground.environment(*TORCH_BIN), ground.hosts
    words = [*_ACCELERATE, "--num_processes", "4", "--num_machines", "2", "--main_process_ip", a]
    words += ["--main_process_port", "29546"]
    lines = [
        ground.on(host, str(bin / "accelerate"), *words, "--machine_rank", str(rank), *script)
        for rank, host in enumerate(ground.hosts)
    ]
    return Commands(lines, {"ACCELERATE_USE_CPU": "1", "AIODIST_SECRET": ground.mark * 2})


def deepspeed_bin(ground: Ground) -> Path:
    """The `bin` folder of an environment with DeepSpeed, of which nothing native is built."""
    needs = [
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
    ]
    bin = ground.environment("deepspeed", TORCH, *needs)
    if not (bin / "deepspeed").exists():
        pip = [str(bin / "pip"), "install", "-q", "--no-build-isolation", "--no-deps", "deepspeed==0.19.8"]
        subprocess.run(pip, check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    return bin


def _deepspeed(ground: Ground, script: list[str]) -> Commands:
    bin = deepspeed_bin(ground)
    words = ["--num_gpus", "2", "--no_local_rank", "--master_port", "29598"]
    return Commands(
        [[str(bin / "deepspeed"), *words, *script]], {"DS_ACCELERATOR": "cpu", "PATH": path_with(bin)}
    )


def deepspeed_two(ground: Ground, script: list[str]) -> Commands:
    """By pdsh, and that by ssh; variables that are none of NCCL's and Python's go by a file."""
    debian("pdsh", "pdsh")
    bin, (a, b) = deepspeed_bin(ground), ground.hosts
    hostfile, variables = ground.folder / "deepspeed-hosts", ground.folder / "deepspeed-env"
    hostfile.write_text(f"{a} slots=2\n{b} slots=2\n")
    given = {"AIODIST_SECRET": ground.mark * 2, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    variables.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    words = ["--hostfile", str(hostfile), "--num_gpus", "2", "--no_local_rank", "--master_port", "29599"]
    env = {"DS_ACCELERATOR": "cpu", "DS_ENV_FILE": str(variables), "PDSH_RCMD_TYPE": "ssh"}
    env["PATH"] = f"{bin}{os.pathsep}{ground.sshd.path()}"
    return Commands([ground.on(a, str(bin / "deepspeed"), *words, *script)], env)


def _lightning(ground: Ground, script: list[str]) -> Commands:
    """The trainer starts the second process; the script is run in its callback."""
    bin = ground.environment(*TORCH_BIN)
    return Commands([[str(bin / "python"), str(_HERE / "lightning_job.py"), *script]], WITH_TESTS)


def _lightning_in_ours(ground: Ground, script: list[str]) -> Commands:
    """`aiodist run` starts both, and AiodistEnvironment tells the trainer."""
    bin = ground.environment(*TORCH_BIN)
    words = ["run", "--nproc-per-node", "2", str(_HERE / "lightning_job.py"), "--environment", *script]
    return Commands([[str(bin / "aiodist"), *words]], WITH_TESTS)


CASES = (
    Case("torchrun", _torchrun, ONE_HOST),
    Case("torchrun, 2 hosts, c10d", _torchrun_c10d, TWO_HOSTS),
    Case("torchrun, 2 hosts, static", _torchrun_static, TWO_HOSTS),
    Case("torch.distributed.launch", _torch_launch, ONE_HOST),
    Case("accelerate launch", _accelerate, ONE_HOST),
    Case("accelerate launch, 2 hosts", _accelerate_two, TWO_HOSTS),
    Case("deepspeed 0.19.8", _deepspeed, ONE_HOST),
    Case("deepspeed 0.19.8, 2 hosts, by pdsh", deepspeed_two, TWO_HOSTS),
    Case("Lightning, strategy ddp", _lightning, ONE_HOST),
    Case("Lightning in aiodist run", _lightning_in_ours, ONE_HOST),
)
