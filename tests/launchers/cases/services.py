"""Horovod's launcher, Ray, Dask, JAX, and servers that start workers of their own."""

from __future__ import annotations

import subprocess
import unittest
from pathlib import Path

from tests.launchers.case import ONE_HOST, TWO_HOSTS, WITH_TESTS, Case, Commands
from tests.launchers.ground import Ground

_HERE = Path(__file__).parents[1]


def _horovod_words(ground: Ground) -> list[str]:
    """Its launcher alone: the native part, which scripts would import, is not built."""
    needs = ["setuptools<80", "wheel", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi"]
    bin = ground.environment("horovod", *needs)
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
        got = [*pip, "-d", str(ground.folder), "horovod==0.28.1"]
        done = subprocess.run(got, capture_output=True, check=False)
        archive = ground.folder / "horovod-0.28.1.tar.gz"
        if not archive.exists():
            raise unittest.SkipTest(f"no horovod: {done.stderr.decode()[-100:]}")
        subprocess.run(["tar", "xzf", str(archive), "-C", str(ground.folder)], check=True)
    return [str(bin / "python"), str(_HERE / "horovod_run.py"), str(source), "--gloo"]


def _horovodrun(ground: Ground, script: list[str]) -> Commands:
    words = _horovod_words(ground)
    return Commands([[*words, "-np", "2", words[0], *script]])


def horovodrun_two(ground: Ground, script: list[str]) -> Commands:
    """By ssh, with all variables in its command line: so the secret is in a file."""
    words, (a, b) = _horovod_words(ground), ground.hosts
    secret = ground.folder / "secret"
    secret.touch(0o600)
    secret.write_text(ground.mark * 2)
    line = [*words, "-np", "4", "-H", f"{a}:2,{b}:2", "--network-interface", "eth0", words[0], *script]
    env = {"AIODIST_SECRET_FILE": str(secret), "PATH": ground.sshd.path()}
    return Commands([ground.on(a, *line)], env)


def _ray(ground: Ground, script: list[str]) -> Commands:
    return _ray_job(ground, script)


def _ray_again(ground: Ground, script: list[str]) -> Commands:
    """A worker fails once; Ray starts all anew."""
    return _ray_job(ground, ["--fail-once", *script])


def _ray_elastic(ground: Ground, script: list[str]) -> Commands:
    """Likewise, with a number of workers that Ray may choose anew: one or two."""
    return _ray_job(ground, ["--elastic", *script])


def _ray_job(ground: Ground, words: list[str]) -> Commands:
    bin = ground.environment("ray", "ray[train]")
    env = {"RAY_raylet_start_wait_time_s": "200", "RAY_TRAIN_V2_ENABLED": "1", **WITH_TESTS}
    return Commands([[str(bin / "python"), str(_HERE / "ray_job.py"), *words]], env)


def _dask(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("dask", "distributed")
    return Commands([[str(bin / "python"), str(_HERE / "dask_job.py")]])


def _jax_variables(ground: Ground, script: list[str]) -> Commands:
    return _jax_pair(ground, [str(ground.environment("plain") / "python"), *script])


def _jax(ground: Ground, script: list[str]) -> Commands:
    """jax.distributed is initialised first, in the same processes."""
    bin = ground.environment("jax", "jax", "jaxlib")
    return _jax_pair(ground, [str(bin / "python"), str(_HERE / "jax_job.py"), *script])


def _jax_pair(ground: Ground, command: list[str]) -> Commands:
    a, _ = ground.hosts
    place = [f"JAX_COORDINATOR_ADDRESS={a}:29577", "JAX_NUM_PROCESSES=2"]
    lines = [
        ground.on(host, "env", *place, f"JAX_PROCESS_ID={rank}", *command)
        for rank, host in enumerate(ground.hosts)
    ]
    return Commands(lines, {"AIODIST_SECRET": ground.mark * 2, "JAX_PLATFORMS": "cpu", **WITH_TESTS})


def _uvicorn(ground: Ground, script: list[str]) -> Commands:
    words = "--limit-max-requests 1 --port $SERVER_PORT {app}"
    return _server(ground, "export SERVER_PORT=$((8820+LOCAL_RANK)); exec {bin}/uvicorn " + words)


def _gunicorn(ground: Ground, script: list[str]) -> Commands:
    """Each with one worker of gunicorn's, which is the rank: a child of the process that was started."""
    worker = "-w 1 -k uvicorn.workers.UvicornWorker"
    line = "export SERVER_PID=$$; exec {bin}/gunicorn " + worker + " -b 127.0.0.1:$((8830+LOCAL_RANK)) {app}"
    return _server(ground, line)


def _server(ground: Ground, line: str) -> Commands:
    bin = ground.environment("servers", "uvicorn", "gunicorn")
    shell = line.format(bin=bin, app="tests.launchers.server_job:app")
    words = ["run", "--nproc-per-node", "2", "--no-python", "bash", "-c", shell]
    return Commands([[str(bin / "aiodist"), *words]], WITH_TESTS)


_EACH = ((0, 1, 0, 2), (0, 1, 1, 2))

CASES = (
    Case("horovodrun 0.28.1, its launcher alone", _horovodrun, ONE_HOST),
    Case("horovodrun 0.28.1, its launcher alone, 2 hosts", horovodrun_two, TWO_HOSTS),
    Case("Ray Train", _ray, ONE_HOST),
    Case("Ray Train, a worker fails and all are started again", _ray_again, ONE_HOST, own=True),
    Case("Ray Train, elastic, a worker fails", _ray_elastic, ONE_HOST, own=True),
    Case("Dask", _dask, ONE_HOST, own=True),
    Case("JAX's variables, 2 hosts", _jax_variables, _EACH),
    Case("after jax.distributed.initialize(), 2 hosts", _jax, _EACH),
    Case("uvicorn in aiodist run", _uvicorn, ONE_HOST, own=True),
    Case("gunicorn in aiodist run", _gunicorn, ONE_HOST, own=True),
)
