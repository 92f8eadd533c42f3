"""CuPy, and the devices that this process sees. Nothing is imported before it is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from aiodist.base.environment.placement import placement
from aiodist.base.environment.process import host_id
from aiodist.base.errors import BackendUnavailable, UsageError

_INSTALL = "pip install 'aiodist[cuda12]', or 'aiodist[cuda13]'"
_NO_DRIVER = "Install NVIDIA's driver; in a container, start it with --gpus all"


def has_driver() -> bool:
    """Whether a driver of GPUs is here, as far as files tell: of Linux, or of Linux in Windows."""
    return any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))


def load() -> Any:
    """The module `cupy`, once there is a device that it can use.

    Raises:
        BackendUnavailable: names the one thing that is missing.
    """
    cupy = import_cupy()
    if count_devices(cupy) == 0:
        raise BackendUnavailable(
            "no CUDA device is visible to this process",
            hint="Check CUDA_VISIBLE_DEVICES, and what nvidia-smi lists",
        )
    return cupy


def import_cupy() -> Any:
    """The module `cupy`, whether there is a device or not."""
    try:
        import cupy
    except ImportError as error:
        if error.name == "cupy":
            nor = "" if has_driver() else f". Nor is an NVIDIA driver here: {_NO_DRIVER}"
            raise BackendUnavailable(
                "device tensors need CuPy, which is not installed", hint=_INSTALL + nor
            ) from None
        raise BackendUnavailable(
            f"CuPy is installed and cannot be imported ({error})", hint=f"Reinstall it: {_INSTALL}"
        ) from error
    return cupy


def count_devices(cupy: Any) -> int:
    """The number of CUDA devices that this process sees.

    Raises:
        BackendUnavailable: there is no driver, or none that this CuPy can use.
    """
    runtime = cupy.cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        driver = runtime.driverGetVersion()
        if driver == 0:
            raise BackendUnavailable("there is no NVIDIA driver on this machine", hint=_NO_DRIVER) from None
        if "NoDevice" in str(error):
            return 0
        needed = runtime.runtimeGetVersion()
        if driver < needed:
            raise BackendUnavailable(
                f"the NVIDIA driver is for CUDA {_version(driver)}, and CuPy here for {_version(needed)}",
                hint="Update the driver, or install the CuPy of its CUDA version",
            ) from None
        raise BackendUnavailable(f"CUDA cannot start here ({error})", hint=_NO_DRIVER) from error


def choose_device(device_id: Any, environ: Mapping[str, str]) -> int:
    """Index of the CUDA device that this process is to use.

    Args:
        device_id: what the user asked for: an index, 'cuda:1', a torch.device; None follows the local rank.
        environ: says the local rank.

    Raises:
        BackendUnavailable: there is no CuPy, driver or device. UsageError: there is no such device.
    """
    return pick(device_id, environ, count_devices(load()))


def pick(device_id: Any, environ: Mapping[str, str], count: int) -> int:
    """`choose_device` among `count` devices."""
    index = _index_of(device_id)
    if index is None:
        return _local_rank(environ) % count
    if not 0 <= index < count:
        raise UsageError(
            f"device_id={device_id!r}: this process sees {count} CUDA device{'s' if count > 1 else ''}",
            hint=f"Use 0 to {count - 1}" if count > 1 else "Use 0, or look at CUDA_VISIBLE_DEVICES",
        )
    return index


def identity_of(cupy: Any, device: int) -> str:
    """The name of a device among those of all hosts: processes find out by it that they share one.

    This boot of the host, and the place on its PCI bus: by these NCCL, too, tells devices apart. Not by the
    UUID, which CuPy gives up to its first zero byte: one in 16 devices has one, and one in 256 gives nothing.
    """
    return f"{host_id()} {cupy.cuda.runtime.deviceGetPCIBusId(device)}"


def _index_of(device_id: Any) -> int | None:
    if device_id is None or (isinstance(device_id, int) and not isinstance(device_id, bool)):
        return device_id
    kind, index = getattr(device_id, "type", None), getattr(device_id, "index", None)  # torch.device
    if isinstance(device_id, str):
        kind, _, number = device_id.partition(":")
        index = int(number) if number.isdecimal() else None if not number else -1
    if kind != "cuda" or index == -1:
        raise UsageError(
            f"device_id={device_id!r} names no CUDA device", hint="Pass an index, or torch.device('cuda:0')"
        )
    return index


def _local_rank(environ: Mapping[str, str]) -> int:
    try:
        return placement(environ).local_rank or 0
    except UsageError:  # rank and size may come as arguments, and are checked there
        return 0


def _version(code: int) -> str:
    return f"{code // 1000}.{code % 1000 // 10}"
