"""NVIDIA's driver and its devices, from libcuda itself: this needs no package.

See "Initialization", "Version Management" and "Device Management" in the CUDA Driver API.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

_NAMES = ("libcuda.so.1", "libcuda.so")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 16),)


def probe() -> dict[str, Any]:
    """Look for the CUDA driver and its devices.

    Returns:
        'nodes': device files of the kernel's part of the driver, 'kernel': its version;
        'library': whether there is a libcuda; 'cuda': the CUDA version that it speaks, as 1000 * major + 10 *
        minor; 'trouble': why it finds no devices;
        'devices': name, memory (bytes), uuid and capability of each; 'separate': pairs without peer access.
    """
    facts: dict[str, Any] = {
        "nodes": _nodes(),
        "kernel": _kernel(),
        "library": False,
        "cuda": 0,
        "trouble": "",
        "devices": [],
        "separate": [],
    }
    cuda = _library()
    if cuda is None:
        return facts
    facts["library"] = True
    facts["cuda"] = _number(cuda.cuDriverGetVersion)
    code = cuda.cuInit(0)
    if code:
        facts["trouble"] = _error_name(cuda, code)
        return facts
    count = _number(cuda.cuDeviceGetCount)
    facts["devices"] = [_device(cuda, index) for index in range(count)]
    facts["separate"] = [
        [one, other]
        for one in range(count)
        for other in range(count)
        if one != other and not _number(cuda.cuDeviceCanAccessPeer, one, other)
    ]
    return facts


def _nodes() -> list[str]:
    """Device files, of Linux and of Linux in Windows."""
    try:
        names = sorted(entry.name for entry in Path("/dev").iterdir())
    except OSError:
        return []
    return [name for name in names if re.fullmatch(r"nvidia\d+|dxg", name)]


def _kernel() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return ""


def _library() -> ctypes.CDLL | None:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _number(function: Any, *arguments: int) -> int:
    """The number that a function writes to where its first argument points. A CUdevice is its index."""
    found = ctypes.c_int(0)
    if function(ctypes.byref(found), *arguments):
        return 0
    return found.value


def _device(cuda: ctypes.CDLL, index: int) -> dict[str, Any]:
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), index)
    memory = ctypes.c_size_t(0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), index)
    uuid = _Uuid()
    cuda.cuDeviceGetUuid(ctypes.byref(uuid), index)
    major = _number(cuda.cuDeviceGetAttribute, _MAJOR, index)
    minor = _number(cuda.cuDeviceGetAttribute, _MINOR, index)
    return {
        "name": name.value.decode(errors="replace"),
        "memory": memory.value,
        "uuid": bytes(uuid.bytes).hex(),
        "capability": f"{major}.{minor}",
    }


def _error_name(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    if cuda.cuGetErrorName(code, ctypes.byref(text)) or not text.value:
        return f"CUDA error {code}"
    return text.value.decode()
