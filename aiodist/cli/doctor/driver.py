"""NVIDIA's driver and its devices, from libcuda itself: this needs no package.

See "Initialization", "Version Management" and "Device Management" in the CUDA Driver API.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiodist.cli.doctor.topic import Answers, Finding, Machine, ProcessAnswer, ProcessQuestion

NO_DEVICES = "device tensors cannot be used here; host tensors are not affected"
"""What it costs to be without a device that can be used."""

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def questions(machine: Machine) -> dict[str, ProcessQuestion]:
    """libcuda is loaded in a process of its own."""
    return {"driver": ProcessQuestion("the GPU driver", examine)}


def examine() -> dict[str, Any]:
    """Look for the CUDA driver and its devices.

    Returns:
        'nodes': device files of the kernel's part of the driver, 'kernel': its version;
        'library': whether there is a libcuda; 'cuda': the CUDA version that it speaks, as 1000 * major + 10 *
        minor; 'trouble': why it finds no devices;
        'devices': name, memory (bytes), uuid and capability of each; 'separate': pairs without peer access.
    """
    cuda = _library()
    facts = {"nodes": _nodes(), "kernel": _kernel(), "library": cuda is not None}
    facts |= {"cuda": 0, "trouble": "", "devices": [], "separate": []}
    if cuda is None:
        return facts
    facts["cuda"] = _number(cuda.cuDriverGetVersion)
    if code := cuda.cuInit(0):
        facts["trouble"] = _error_name(cuda, code)
        return facts
    every = range(_number(cuda.cuDeviceGetCount))
    facts["devices"] = [_device(cuda, index) for index in every]
    facts["separate"] = [
        [one, other]
        for one in every
        for other in every
        if one != other and not _number(cuda.cuDeviceCanAccessPeer, one, other)
    ]
    return facts


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say what the driver is, which devices it has, and whether these reach each other."""
    driver = answers["driver"]
    yield _check_driver(driver)
    present = devices(answers)
    for index, device in enumerate(present):
        gib = device["memory"] / (1 << 30)
        value = f"{device['name']}, {gib:.0f} GiB, compute {device['capability']}, GPU-{device['uuid'][:8]}"
        yield Finding(f"GPU {index}", "ok", value)
    if len(present) > 1:
        yield _check_peers(len(present), driver.facts["separate"])


def devices(answers: Answers) -> Sequence[Mapping[str, Any]]:
    """The devices that the driver has, as `examine` describes them."""
    found: Sequence[Mapping[str, Any]] = answers["driver"].facts.get("devices", ())
    return found


def cuda_version(number: int) -> str:
    """12090 → '12.9'."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _check_driver(driver: ProcessAnswer) -> Finding:
    facts = driver.facts
    if driver.trouble:
        fix = "nvidia-smi, and the kernel's log (dmesg), say more"
        return Finding("driver", "missing", f"libcuda: {driver.trouble}", NO_DEVICES, fix)
    if not facts["library"]:
        if not facts["nodes"]:
            return Finding("driver", "missing", "no NVIDIA driver, no GPU", NO_DEVICES)
        value = f"{', '.join(facts['nodes'])} but no libcuda"
        fix = "in a container: --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return Finding("driver", "missing", value, NO_DEVICES, fix)
    kernel = f", driver {facts['kernel']}" if facts["kernel"] else ""
    value = f"CUDA {cuda_version(facts['cuda'])}{kernel}"
    if facts["devices"]:
        return Finding("driver", "ok", value)
    why = f": {facts['trouble']}" if facts["trouble"] else " can be seen"
    fix = "unset CUDA_VISIBLE_DEVICES, or see what nvidia-smi says" if facts["nodes"] else ""
    return Finding("driver", "missing", f"{value}, but no device{why}", NO_DEVICES, fix)


def _check_peers(count: int, separate: Sequence[Sequence[int]]) -> Finding:
    if not separate:
        return Finding("peer access", "ok", f"between all {count} devices")
    pairs = [f"{one}→{other}" for one, other in separate]
    listed = ", ".join(pairs[:8]) + (f" and {len(pairs) - 8} more" if len(pairs) > 8 else "")
    cost = "NCCL goes through the host's memory between them"
    return Finding("peer access", "limited", f"not {listed}", cost)


def _nodes() -> list[str]:
    """Device files, of Linux and of Linux in Windows."""
    names = (path.name for path in Path("/dev").glob("*"))
    return sorted(name for name in names if re.fullmatch(r"nvidia\d+|dxg", name))


def _kernel() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return ""


def _library() -> ctypes.CDLL | None:
    for name in ("libcuda.so.1", "libcuda.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _number(function: Any, *arguments: int) -> int:
    """The number that a function writes to where its first argument points. A CUdevice is its index."""
    found = ctypes.c_int(0)
    return 0 if function(ctypes.byref(found), *arguments) else found.value


def _device(cuda: ctypes.CDLL, index: int) -> dict[str, Any]:
    name, uuid = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    memory = ctypes.c_size_t(0)
    cuda.cuDeviceGetName(name, len(name), index)
    cuda.cuDeviceGetUuid(uuid, index)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), index)
    major, minor = (_number(cuda.cuDeviceGetAttribute, which, index) for which in (_MAJOR, _MINOR))
    return {
        "name": name.value.decode(errors="replace"),
        "memory": memory.value,
        "uuid": uuid.raw.hex(),
        "capability": f"{major}.{minor}",
    }


def _error_name(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    if cuda.cuGetErrorName(code, ctypes.byref(text)) or not text.value:
        return f"CUDA error {code}"
    return text.value.decode()
