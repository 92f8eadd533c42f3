"""CuPy, the NCCL that it loads, and whether several ranks can use one device."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import distributions
from typing import Any

from aiodist.cli.doctor.driver import NO_DEVICES, cuda_version, devices
from aiodist.cli.doctor.topic import (
    Answers,
    Finding,
    Machine,
    ProcessAnswer,
    ProcessQuestion,
    describe,
    one_line,
)

_LONGEST = 4000  # of what a compiler says
_CONTIGUOUS = "device tensors that are not contiguous cannot be used, nor most of CuPy's own functions"
_NOTHING = "nothing here, as there is no GPU"
_STAGED = "device tensors go through the host's memory, which is slower"


def questions(machine: Machine) -> dict[str, ProcessQuestion]:
    """CUDA starts, and a device is used, in a process of its own."""
    return {"cupy": ProcessQuestion("CuPy", examine)}


def examine() -> dict[str, Any]:
    """Look for CuPy.

    Returns:
        'version'; 'packages': the distributions that bring a CuPy; 'cuda': of its runtime, as the driver's;
        'copied': an array went to its first device and came back; 'trouble': why not; 'uncompiled': what CuPy
        said where it cannot compile a kernel;
        'nccl': 10000 * major + 100 * minor + patch, 0 without; 'without': why;
        'shares': it lets several ranks use one device; 'could_share': it would, if it were told to.
    """
    import cupy

    names = {found.name for found in distributions() if found.name}
    packages = sorted(name for name in names if name == "cupy" or name.startswith("cupy-cuda"))
    facts = {"version": cupy.__version__, "packages": packages, "cuda": 0, "copied": False, "trouble": ""}
    try:
        runtime = cupy.cuda.runtime
        facts["cuda"] = runtime.runtimeGetVersion()
        if runtime.getDeviceCount():
            facts["copied"] = cupy.asarray([3, 1, 4]).get().tolist() == [3, 1, 4]
    except Exception as error:
        facts["trouble"] = describe(error)
    facts["uncompiled"] = _uncompiled(cupy) if facts["copied"] else ""
    return facts | _look_for_nccl()


def _look_for_nccl() -> dict[str, Any]:
    from aiodist.backends.nccl.sharing import can_share

    facts: dict[str, Any] = {"nccl": 0, "without": "", "shares": False, "could_share": False}
    try:
        from cupy.cuda import nccl

        if nccl.available:
            facts["nccl"] = version = int(nccl.get_version())
            facts["shares"] = can_share(version, os.environ)
            facts["could_share"] = can_share(version, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
        else:
            facts["without"] = "its library was not found"
    except Exception as error:
        facts["without"] = describe(error)
    return facts


def _uncompiled(cupy: Any) -> str:
    """Have a kernel compiled that needs CUDA's headers, too: it copies every other float16."""
    import numpy as np

    try:
        copied = cupy.asarray(np.array([3, 1, 4], np.float16))[::2].copy().get().tolist()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:_LONGEST]
    return "" if copied == [3, 4] else "what was copied is not what it should be"


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say what CuPy and NCCL can do with the devices that the driver has."""
    cupy, count = answers["cupy"], len(devices(answers))
    speaks = answers["driver"].facts.get("cuda", 0)
    extra = "cuda13" if speaks >= 13000 else "cuda12"
    yield _check_cupy(cupy, count, speaks, extra)
    yield _check_nccl(cupy, count, extra)
    if count:
        yield _check_sharing(cupy, count, machine.ranks, extra)


def nccl_version(number: int) -> str:
    """23203 → '2.32.3'."""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _check_cupy(cupy: ProcessAnswer, count: int, speaks: int, extra: str) -> Finding:
    """Whether CuPy can be used.

    Args:
        cupy: what was seen of it.
        count: devices.
        speaks: the CUDA version of the driver.
        extra: of `pip install aiodist[…]`, for that driver.
    """
    install = f"pip install 'aiodist[{extra}]'"
    cost = NO_DEVICES if count else _NOTHING
    if cupy.absent == "cupy":
        return Finding("CuPy", "missing", "not installed", cost, install if count else "")
    if cupy.trouble:
        return Finding("CuPy", "missing", f"cannot be used: {cupy.trouble}", cost, install)
    facts = cupy.facts
    built = f", CUDA {cuda_version(facts['cuda'])}" if facts["cuda"] else ""
    value = f"{facts['version']}{built}"
    packages = facts["packages"]
    replace = f"pip uninstall -y {' '.join(packages)} && {install}"
    if len(packages) > 1:
        value = f"{value}, of {' and '.join(packages)}"
        return Finding("CuPy", "limited", value, "they overwrite each other", replace)
    if not count:
        return Finding("CuPy", "ok", value)
    if facts["cuda"] // 1000 > speaks // 1000:
        value = f"{value}, but the driver knows CUDA {cuda_version(speaks)}"
        return Finding("CuPy", "missing", value, NO_DEVICES, replace)
    if not facts["copied"]:
        why = facts["trouble"] or "an array did not come back from the device"
        return Finding("CuPy", "missing", f"{value}: {why}", NO_DEVICES, "nvidia-smi says more")
    if facts["uncompiled"]:
        value = f"{value}: {_lacking(facts['uncompiled'])}"
        install = f"pip install 'aiodist[cuda{facts['cuda'] // 1000}]'"
        return Finding("CuPy", "limited", value, _CONTIGUOUS, install)
    return Finding("CuPy", "ok", value)


def _lacking(said: str) -> str:
    """The part that CuPy lacks to compile its kernels, from what it said."""
    if header := re.search(r'cannot open source file "([^"]+)"', said):
        return f"CUDA's headers ({header[1]}) are missing"
    if "libnvrtc" in said:
        return "CUDA's compiler (NVRTC) is missing"
    return one_line(f"it compiles nothing: {said}")


def _check_nccl(cupy: ProcessAnswer, count: int, extra: str) -> Finding:
    if cupy.trouble:
        value = "comes with CuPy, which is not here"
        return Finding("NCCL", "missing", value, NO_DEVICES if count else _NOTHING)
    if cupy.facts["nccl"]:
        return Finding("NCCL", "ok", nccl_version(cupy.facts["nccl"]))
    if not count:
        return Finding("NCCL", "missing", cupy.facts["without"], _NOTHING)
    return Finding("NCCL", "missing", cupy.facts["without"], _STAGED, f"pip install {_package(extra)}")


def _check_sharing(cupy: ProcessAnswer, count: int, ranks: int, extra: str) -> Finding:
    """Whether several ranks can use one device through NCCL."""
    name, facts = "ranks on one GPU", cupy.facts
    if facts.get("shares"):
        return Finding(name, "ok", f"NCCL {nccl_version(facts['nccl'])} lets them share it")
    could = facts.get("could_share", False)
    value = "NCCL can share it, and is not told to" if could else "NCCL can share it from 2.30 on"
    if ranks <= count:
        return Finding(name, "ok", f"{value}; {ranks} on {count} need not")
    fix = f"pip install -U '{_package(extra)}>=2.30'" if facts.get("nccl") else ""
    return Finding(name, "limited", value, _STAGED, "export NCCL_MULTI_RANK_GPU_ENABLE=1" if could else fix)


def _package(extra: str) -> str:
    return f"nvidia-nccl-{extra.replace('cuda', 'cu')}"
