"""Tensors on a CUDA device as arrays of which only the geometry is used.

A `DeviceArray` is an ndarray over device addresses: its shape, strides, dtype and address are those of the
tensor, so all that is checked and computed about arrays (overlaps, parts, contiguity) works on it as on those
of the host. It must never be *read*: that memory is not the host's. The backend that carries out an operation
on it hands the address to the device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from aiodist.base.errors import UsageError
from aiodist.base.types import BFLOAT16, check_dtype, dtype_named

_KDL_CUDA = 2
_NULL_STAND_IN = 256  # an address for tensors without elements, which have none


class DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """The geometry of a tensor on a device.

    Attributes:
        cuda: index of the CUDA device. (`device` is NumPy's, and says 'cpu'.)
        source: the user's tensor, which owns the memory; parts of the array have the same.
    """

    cuda: int
    source: Any

    def __array_finalize__(self, obj: Any) -> None:
        self.cuda = getattr(obj, "cuda", -1)
        self.source = getattr(obj, "source", None)

    @property
    def pointer(self) -> int:
        """Device address of the first element."""
        return int(self.__array_interface__["data"][0])

    def __getitem__(self, key: Any) -> Any:
        keys = key if type(key) is tuple else (key,)
        if any(type(part) not in _BASIC for part in keys):
            self._refuse()  # it would copy
        return super().__getitem__(keys if ... in keys else (*keys, ...))  # a part, also of one element

    def reshape(self, *shape: Any, **options: Any) -> Any:
        """Another shape on the same memory."""
        if not self.flags.c_contiguous:
            self._refuse()  # it might copy
        return super().reshape(*shape, **options)

    # ── never read ───────────────────────────────────────────────────────────────────────────────────

    def _refuse(self, *_args: Any, **_options: Any) -> NoReturn:
        raise TypeError(f"this array lies on CUDA device {self.cuda}: the host cannot read it")

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function not in (np.may_share_memory, np.shares_memory):
            self._refuse()
        return super().__array_function__(function, types, args, options)

    __array_ufunc__ = None  # type: ignore[assignment]
    data = flat = property(_refuse)

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype.name}{list(self.shape)} on cuda:{self.cuda}>"

    __str__ = __repr__


_BASIC = (int, slice, type(...), type(None))
_GEOMETRY = {"reshape", "setflags", "squeeze", "swapaxes", "transpose", "view"}
_READING = "bool complex contains copy deepcopy dlpack float format index int reduce reduce_ex setitem"

for _name in dir(np.ndarray):
    if callable(getattr(np.ndarray, _name)) and not _name.startswith("_") and _name not in _GEOMETRY:
        setattr(DeviceArray, _name, DeviceArray._refuse)
for _name in _READING.split():
    setattr(DeviceArray, f"__{_name}__", DeviceArray._refuse)


class _Interface:
    """An object that gives NumPy the geometry of an array."""

    def __init__(self, interface: Mapping[str, Any]) -> None:
        self.__array_interface__ = dict(interface)


def torch_of(obj: Any) -> Any:
    """The module `torch`, where an object is one of its tensors; else None. Never imports it: a caller that
    holds a tensor has done so."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(obj, getattr(torch, "Tensor", ())) else None


def device_array(obj: Any, what: str) -> DeviceArray | None:
    """See a tensor on a CUDA device; None for what is none.

    Args:
        obj: a torch CUDA tensor, a CuPy array, or anything with `__cuda_array_interface__` or DLPack.
        what: the argument's name, for errors.

    Raises:
        UsageError: it lies on a device of another kind, or has a dtype that cannot be communicated.
    """
    if torch := torch_of(obj):
        return _of_torch(torch, obj, what)
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(obj, interface, what)
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return _of_dlpack(obj, what) if int(obj.__dlpack_device__()[0]) == _KDL_CUDA else None
    return None


def geometry(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    device: int,
    source: Any,
    *,
    writable: bool = True,
) -> DeviceArray:
    """An array at a device address.

    Args:
        strides: in bytes; None where it is contiguous.
        source: what owns the memory; kept.
    """
    check_dtype(dtype)
    bits = np.dtype(f"V{dtype.itemsize}") if dtype == BFLOAT16 else dtype
    interface = {
        "version": 3,
        "shape": shape,
        "strides": strides,
        "typestr": bits.str,
        "data": (pointer or _NULL_STAND_IN, not writable),
    }
    array = np.asarray(_Interface(interface)).view(dtype).view(DeviceArray)
    array.cuda = device
    array.source = source
    return array


def _of_torch(torch: Any, tensor: Any, what: str) -> DeviceArray | None:
    if tensor.device.type != "cuda":
        return None
    check_torch(torch, tensor, what)
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        dtype = dtype_named(name)
        check_dtype(dtype)
    except (TypeError, UsageError):
        raise UsageError(f"{what} of torch.{name} cannot be communicated", hint="Convert it first") from None
    strides = tuple(stride * dtype.itemsize for stride in tensor.stride())
    return geometry(tensor.data_ptr(), tuple(tensor.shape), strides, dtype, tensor.device.index, tensor)


def check_torch(torch: Any, tensor: Any, what: str) -> None:
    """Refuse torch tensors whose memory does not hold, in strides, what they show."""
    if tensor.is_nested:
        raise UsageError(
            f"{what} is nested: its parts differ in shape", hint=f"Pass {what}.values(), or padded"
        )
    if tensor.is_quantized:
        raise UsageError(f"{what} is quantized", hint=f"Pass {what}.int_repr(), or {what}.dequantize()")
    if tensor.layout != torch.strided:
        raise UsageError(f"{what} is sparse ({tensor.layout})", hint=f"Pass {what}.to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError(
            f"{what} is a lazy conjugate or negative: its memory holds other values than it shows",
            hint=f"Pass {what}.resolve_conj().resolve_neg()",
        )


def _of_interface(obj: Any, interface: Mapping[str, Any], what: str) -> DeviceArray:
    if interface.get("mask") is not None:
        raise UsageError(f"{what} has a mask, which would be lost")
    pointer, read_only = interface["data"]
    strides = interface.get("strides")
    dtype = getattr(obj, "dtype", None)
    try:
        kind: np.dtype[Any] = np.dtype(dtype if dtype is not None else interface["typestr"])
    except TypeError:
        kind = np.dtype(interface["typestr"])
    if not kind.isnative:
        raise UsageError(f"{what} has byte order {kind.str!r}, which is not this machine's")
    return geometry(
        int(pointer),
        tuple(interface["shape"]),
        tuple(strides) if strides is not None else None,
        kind,
        _device_of(obj, what),
        obj,
        writable=not read_only,
    )


def _of_dlpack(obj: Any, what: str) -> DeviceArray:
    cupy: Any = sys.modules.get("cupy")  # only it knows what such an object holds
    if cupy is None:
        raise UsageError(
            f"{what} lies on a CUDA device and shows itself by DLPack only",
            hint=f"Pass cupy.from_dlpack({what})",
        )
    array = cupy.from_dlpack(obj)
    return _of_interface(array, array.__cuda_array_interface__, what)


def _device_of(obj: Any, what: str) -> int:
    """Index of the device that an object's memory is on; the interface does not say."""
    device: Any = getattr(getattr(obj, "device", None), "id", None)  # CuPy, Numba
    if isinstance(device, int):
        return device
    if hasattr(obj, "__dlpack_device__"):
        kind, index = obj.__dlpack_device__()
        if int(kind) == _KDL_CUDA:
            return int(index)
    raise UsageError(f"{what} does not say on which device it lies", hint=f"Pass cupy.asarray({what})")
