"""A NumPy array over the caller's tensor: the memory is shared, never copied.

Accepted are NumPy arrays, PyTorch CPU tensors (torch is never imported here: a caller that holds a
tensor has imported it), objects with the buffer protocol, `__array_interface__` or DLPack; and numbers, which
have no memory to share, where they are only read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays.device import check_torch, device_array, torch_of
from aiodist.base.errors import UsageError, shown
from aiodist.base.types import BFLOAT16, DTYPES, check_dtype

Array = npt.NDArray[Any]

_KDL_CPU = 1  # DLPack's device type of host memory


def view(
    obj: Any, *, writable: bool, what: str = "tensor", device: bool = False, has_out: bool = True
) -> Array:
    """See an argument as an array that shares its memory, with its shape and strides.

    Args:
        obj: the caller's tensor.
        writable: whether the operation writes to it.
        what: the argument's name in the caller's call, for the error ('tensor', 'out').
        device: it may lie on a CUDA device; the array is a `DeviceArray` then, never to be read.
        has_out: the caller may pass another array as out=, for the error.

    Raises:
        UsageError: it is no tensor, lies on a device, is read-only or overlaps itself where it would be
            written, or has a dtype or byte order that cannot be communicated.
    """
    array = obj if type(obj) is np.ndarray else _seen(obj, what, device)
    dtype = array.dtype
    if not dtype.isnative:
        raise UsageError(
            f"{what} has byte order {dtype.str!r}, which is not this machine's",
            hint=f"Convert it: {what}.astype({what}.dtype.newbyteorder('='))",
        )
    check_dtype(dtype)
    if writable:
        if isinstance(obj, bool | int | float | complex | np.generic):
            raise UsageError(
                f"{what} is a single {type(obj).__name__}, which cannot be written to",
                hint=f"Make an array of it first, np.array([{_number(obj)}]), or a torch tensor",
            )
        _check_writable(array, what, has_out and what != "out")
    return array


def torch_memory(tensor: Any) -> Array | None:
    """See a usual torch tensor on the host as an array, quickly; None: it is not one of those.

    What is left to `view`, which says what is wrong where something is: other objects, tensors on a device,
    with requires_grad, of bfloat16, of subclasses, sparse, nested, conjugated, quantized, without memory.
    """
    torch = torch_of(tensor)
    if torch is None or type(tensor) is not torch.Tensor or tensor.is_nested:
        return None
    try:
        array: Array = tensor.numpy()  # refuses all of the rest, but for one
    except (TypeError, RuntimeError, ValueError):
        return None
    return array if tensor.data_ptr() else None


def _seen(obj: Any, what: str, device: bool) -> Array:
    """`_array_of`, with one kind of error: what foreign objects raise when they are asked is without end."""
    try:
        return _array_of(obj, what, device)
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{what}, a {type(obj).__name__}, cannot be read as an array ({type(error).__name__}: {said})",
            hint="Pass a NumPy array, or a torch tensor, that holds the same values",
        ) from error


def _array_of(obj: Any, what: str, device: bool) -> Array:
    if device:
        found = device_array(obj, what)
        if found is not None:
            return found
    if torch := torch_of(obj):
        return _torch_array(torch, obj, what)
    if isinstance(obj, np.ma.MaskedArray):
        raise UsageError(f"{what} is a masked array; its mask would be lost", hint="Pass .data or .filled(…)")
    if isinstance(obj, np.ndarray):
        return obj.view(np.ndarray)  # np.matrix, np.memmap… as what they hold
    if isinstance(obj, bool | int | float | complex | np.generic):
        return _number_array(obj, what)
    if isinstance(obj, str | list | tuple | dict | set) or obj is None:
        raise _no_tensor(obj, what)
    if hasattr(obj, "__cuda_array_interface__"):
        raise _on_device(what, "a CUDA device")
    for attempt in (_buffer_array, _interface_array, _dlpack_array):
        array = attempt(obj, what)
        if array is not None:
            return array
    raise _no_tensor(obj, what)


def _number_array(obj: Any, what: str) -> Array:
    """A number as a read-only array without axes: a float as float64, an int as int64."""
    if type(obj) is not bool and type(obj) is int and not -(2**63) <= obj < 2**63:
        raise UsageError(
            f"{what} is an integer of more than 64 bits", hint=f"Pass float({what}), or send it as an object"
        )
    array = np.array(obj, np.int64) if type(obj) is int else np.array(obj)
    array.flags.writeable = False
    return array


def _number(obj: Any) -> str:
    """A number, as Python code that keeps its type."""
    if not isinstance(obj, np.generic):
        return shown(obj)
    return f"np.{type(obj).__name__}({shown(obj.item())})"


def _torch_array(torch: Any, tensor: Any, what: str) -> Array:
    if tensor.device.type != "cpu":
        raise _on_device(what, f"device {tensor.device}")
    check_torch(torch, tensor, what)
    tensor = tensor.detach()
    if tensor.numel() and not tensor.data_ptr():
        raise UsageError(
            f"{what} has no memory: its storage was freed", hint="Give it its storage back first"
        )
    try:
        of_bits = tensor.dtype == torch.bfloat16  # which NumPy's own dtypes leave out
        array: Array = tensor.view(torch.int16).numpy().view(BFLOAT16) if of_bits else tensor.numpy()
        return array
    except (TypeError, RuntimeError) as error:
        names = ", ".join(d.name for d in DTYPES)
        raise UsageError(
            f"{what} of {tensor.dtype} cannot be communicated", hint=f"Convert to one of: {names}"
        ) from error


def _buffer_array(obj: Any, what: str) -> Array | None:
    try:
        buffer = memoryview(obj)
    except (TypeError, BufferError):  # the latter: of a dtype that the protocol has no letter for
        return None
    try:
        return np.asarray(buffer)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise UsageError(
            f"{what} is a buffer of format {buffer.format!r}, which NumPy cannot read",
            hint="Cast it: memoryview(…).cast('B')",
        ) from error


def _interface_array(obj: Any, what: str) -> Array | None:
    if not hasattr(obj, "__array_interface__"):
        return None
    array = np.asarray(obj)
    if array.size and not array.ctypes.data:
        raise UsageError(f"{what} has no memory: its __array_interface__ names address 0")
    return array


def _dlpack_array(obj: Any, what: str) -> Array | None:
    """An array by DLPack. NumPy sees memory as read-only where the producer does not say that it may be
    written (the protocol can say so since version 1.0, NumPy asks since 2.1). It may be immutable, so that
    is believed."""
    if not (hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__")):
        return None
    device = obj.__dlpack_device__()
    if int(device[0]) != _KDL_CPU:
        raise _on_device(what, f"DLPack device {tuple(map(int, device))}")
    from_dlpack: Callable[[Any], Array] = np.from_dlpack
    try:
        return from_dlpack(obj)
    except (TypeError, RuntimeError, BufferError, ValueError) as error:
        if getattr(obj, "dtype", None) == BFLOAT16:  # JAX's: NumPy takes it by this way only
            array = np.asarray(obj).view()
            array.flags.writeable = False
            return array
        raise UsageError(f"{what} exports no memory that NumPy can read: {error}") from error


def _check_writable(array: Array, what: str, has_out: bool) -> None:
    if not array.flags.writeable:
        raise UsageError(
            f"{what} is read-only, and this operation writes to it",
            hint="Pass a writable array as out=" if has_out else "Pass a writable array",
        )
    if not array.flags.c_contiguous and overlaps_itself(array):
        raise UsageError(
            f"{what} overlaps itself: several elements (strides {array.strides}) share memory",
            hint="Pass a copy; an expanded or broadcast tensor cannot be written to",
        )


def overlaps_itself(array: Array) -> bool:
    """Whether two elements of a strided array share a byte. Exact; cheap for all usual strides."""
    if array.size <= 1:
        return False
    extents = sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1)
    reach = array.itemsize  # bytes that the dimensions so far cover
    for stride, extent in extents:
        if stride < reach:
            break
        reach += stride * (extent - 1)
    else:
        return False
    if extents[0][0] < array.itemsize:
        return True
    starts = np.zeros(1, np.int64)  # strides that interleave: look at every element's place
    for stride, extent in extents:
        starts = (starts[:, None] + stride * np.arange(extent)).reshape(-1)
    starts.sort()
    return bool((np.diff(starts) < array.itemsize).any())


def _no_tensor(obj: Any, what: str) -> UsageError:
    return UsageError(
        f"{what} must be an array or tensor, got {type(obj).__name__}",
        hint="Pass a NumPy array, a torch CPU tensor, a buffer or a DLPack object",
    )


def _on_device(what: str, where: str) -> UsageError:
    return UsageError(
        f"{what} lies on {where}; here it has to be on the host", hint="Copy it to the host first"
    )
