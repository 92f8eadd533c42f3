"""GPUs: the driver, the devices, CuPy, NCCL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aiodist.cli.doctor.finding import Finding
from aiodist.cli.doctor.probes.asking import Answer
from aiodist.cli.doctor.text import one_line

_NO_DEVICES = "device tensors cannot be used here; host tensors are not affected"
_CONTIGUOUS = "device tensors that are not contiguous cannot be used, nor most of CuPy's own functions"
_NOTHING = "nothing here, as there is no GPU"
_STAGED = "device tensors go through the host's memory, which is slower"


def check_devices(driver: Answer, cupy: Answer, ranks: int) -> Sequence[Finding]:
    """All about GPUs, from the probes `driver` and `cupy`."""
    devices: Sequence[Mapping[str, Any]] = driver.facts.get("devices", ())
    found = [_driver(driver)]
    for index, device in enumerate(devices):
        gib = device["memory"] / (1 << 30)
        value = f"{device['name']}, {gib:.0f} GiB, compute {device['capability']}, GPU-{device['uuid'][:8]}"
        found.append(Finding(f"GPU {index}", "ok", value))
    if len(devices) > 1:
        found.append(_peers(len(devices), driver.facts["separate"]))
    extra = "cuda13" if driver.facts.get("cuda", 0) >= 13000 else "cuda12"
    found.append(_cupy(driver, cupy, len(devices), extra))
    found.append(_nccl(cupy, len(devices), extra))
    if devices:
        found.append(_sharing(cupy, len(devices), ranks, extra))
    return found


def cuda_version(number: int) -> str:
    """12090 → '12.9'."""
    return f"{number // 1000}.{number % 1000 // 10}"


def nccl_version(number: int) -> str:
    """23203 → '2.32.3'."""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _driver(driver: Answer) -> Finding:
    facts = driver.facts
    if driver.trouble:
        fix = "nvidia-smi, and the kernel's log (dmesg), say more"
        return Finding("driver", "missing", f"libcuda: {driver.trouble}", _NO_DEVICES, fix)
    if not facts["library"]:
        if not facts["nodes"]:
            return Finding("driver", "missing", "no NVIDIA driver, no GPU", _NO_DEVICES)
        value = f"{', '.join(facts['nodes'])} but no libcuda"
        fix = "in a container: --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return Finding("driver", "missing", value, _NO_DEVICES, fix)
    kernel = f", driver {facts['kernel']}" if facts["kernel"] else ""
    value = f"CUDA {cuda_version(facts['cuda'])}{kernel}"
    if facts["devices"]:
        return Finding("driver", "ok", value)
    why = f": {facts['trouble']}" if facts["trouble"] else " can be seen"
    fix = "unset CUDA_VISIBLE_DEVICES, or see what nvidia-smi says" if facts["nodes"] else ""
    return Finding("driver", "missing", f"{value}, but no device{why}", _NO_DEVICES, fix)


def _peers(count: int, separate: Sequence[Sequence[int]]) -> Finding:
    if not separate:
        return Finding("peer access", "ok", f"between all {count} devices")
    pairs = [f"{one}→{other}" for one, other in separate]
    listed = ", ".join(pairs[:8]) + (f" and {len(pairs) - 8} more" if len(pairs) > 8 else "")
    cost = "NCCL goes through the host's memory between them"
    return Finding("peer access", "limited", f"not {listed}", cost)


def _cupy(driver: Answer, cupy: Answer, devices: int, extra: str) -> Finding:
    install = f"pip install 'aiodist[{extra}]'"
    cost = _NO_DEVICES if devices else _NOTHING
    if cupy.absent == "cupy":
        return Finding("CuPy", "missing", "not installed", cost, install if devices else "")
    if cupy.trouble:
        return Finding("CuPy", "missing", f"cannot be used: {cupy.trouble}", cost, install)
    facts = cupy.facts
    built = f", CUDA {cuda_version(facts['cuda'])}" if facts["cuda"] else ""
    value = f"{facts['version']}{built}"
    packages = facts["packages"]
    if len(packages) > 1:
        fix = f"pip uninstall -y {' '.join(packages)} && {install}"
        return Finding(
            "CuPy", "limited", f"{value}, of {' and '.join(packages)}", "they overwrite each other", fix
        )
    if devices and facts["cuda"] // 1000 > driver.facts["cuda"] // 1000:
        value = f"{value}, but the driver knows CUDA {cuda_version(driver.facts['cuda'])}"
        fix = f"pip uninstall -y {' '.join(packages)} && {install}"
        return Finding("CuPy", "missing", value, _NO_DEVICES, fix)
    if devices and not facts["copied"]:
        why = facts["trouble"] or "an array did not come back from the device"
        return Finding("CuPy", "missing", f"{value}: {why}", _NO_DEVICES, "nvidia-smi says more")
    if devices and facts["uncompiled"]:
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


def _nccl(cupy: Answer, devices: int, extra: str) -> Finding:
    cost = _STAGED if devices else _NOTHING
    if cupy.trouble:
        value = "comes with CuPy, which is not here"
        return Finding("NCCL", "missing", value, _NO_DEVICES if devices else _NOTHING)
    if cupy.facts["nccl"]:
        return Finding("NCCL", "ok", nccl_version(cupy.facts["nccl"]))
    install = f"pip install nvidia-nccl-{extra.replace('cuda', 'cu')}"
    return Finding("NCCL", "missing", cupy.facts["without"], cost, install if devices else "")


def _sharing(cupy: Answer, devices: int, ranks: int, extra: str) -> Finding:
    """Whether several ranks can use one device through NCCL."""
    facts = cupy.facts
    if facts.get("shares"):
        return Finding("ranks on one GPU", "ok", f"NCCL {nccl_version(facts['nccl'])} lets them share it")
    could = facts.get("could_share", False)
    value = "NCCL can share it, and is not told to" if could else "NCCL can share it from 2.30 on"
    if ranks <= devices:
        return Finding("ranks on one GPU", "ok", f"{value}; {ranks} on {devices} need not")
    if could:
        return Finding("ranks on one GPU", "limited", value, _STAGED, "export NCCL_MULTI_RANK_GPU_ENABLE=1")
    fix = f"pip install -U 'nvidia-nccl-{extra.replace('cuda', 'cu')}>=2.30'" if facts.get("nccl") else ""
    return Finding("ranks on one GPU", "limited", value, _STAGED, fix)
