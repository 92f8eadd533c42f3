"""What machine this is: GPUs, versions, memory. Each line stands for itself, and none raises."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable


def say(name: str, tell: Callable[[], object]) -> None:
    """One line."""
    try:
        print(f"{name}: {tell()}", flush=True)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, timeout=15, check=True).stdout.strip()


def version(name: str) -> object:
    """Of a package."""
    return importlib.import_module(name).__version__


def warned() -> list[str]:
    """What importing CuPy and NCCL warns of: with errors for warnings it would fail."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        importlib.import_module("cupy.cuda.nccl")
    return [str(warning.message) for warning in caught]


def main() -> None:
    """All lines."""
    say("python", lambda: sys.version.split()[0])
    say("kernel", platform.release)
    say("cores", os.cpu_count)
    say("/dev/shm", lambda: f"{shutil.disk_usage('/dev/shm').free >> 20} MiB free")
    say("GPUs", lambda: output("nvidia-smi", "-L"))
    say(
        "modes",
        lambda: output("nvidia-smi", "--query-gpu=compute_mode,mig.mode.current", "--format=csv,noheader"),
    )
    for name in ("numpy", "uvloop", "msgpack", "ml_dtypes", "pytest", "hypothesis", "torch", "cupy"):
        say(name, lambda name=name: version(name))  # type: ignore[misc]
    say("warnings", warned)
    say("NCCL", lambda: importlib.import_module("cupy.cuda.nccl").get_version())
    say("NCCL of CuPy's build", lambda: importlib.import_module("cupy.cuda.nccl").get_build_version())
    say("driver", lambda: importlib.import_module("cupy").cuda.runtime.driverGetVersion())
    say("runtime", lambda: importlib.import_module("cupy").cuda.runtime.runtimeGetVersion())
    say("memory", lambda: importlib.import_module("cupy").cuda.runtime.memGetInfo())


if __name__ == "__main__":
    main()
