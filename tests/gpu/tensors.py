"""Device tensors of CuPy and of torch, from arrays of the host and back, and streams that are busy."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aiodist.base.errors import UsageError
from aiodist.base.types import BFLOAT16
from aiodist.group import ProcessGroup

Array = npt.NDArray[Any]

CYCLES = 400_000_000
"""A fifth of a second, or more: a launch is far quicker, and so are copies and what tests do beside them."""
_SPIN = """extern "C" __global__ void spin(long long cycles) {
    for (long long begin = clock64(); clock64() - begin < cycles;);
}"""


class Library(Protocol):
    """Whose tensors they are."""

    def has(self, dtype: np.dtype[Any]) -> bool: ...
    def put(self, array: Array, layout: str = "C") -> Any:
        """The array on the device, lying in memory as asked (see `testing.programs`)."""

    def get(self, tensor: Any) -> Array: ...


class Cupy:
    """CuPy's arrays, also with negative strides."""

    def __init__(self, device: int) -> None:
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(device).use()

    def has(self, dtype: np.dtype[Any]) -> bool:
        return dtype != BFLOAT16

    def put(self, array: Array, layout: str = "C") -> Any:
        cupy = self.cupy
        if array.ndim == 0 or layout == "C":
            return cupy.asarray(np.ascontiguousarray(array).reshape(array.shape))
        if layout == "F":
            return cupy.asarray(np.asfortranarray(array), order="F")
        if layout == "reversed":
            return cupy.asarray(np.ascontiguousarray(array[::-1]))[::-1]
        return cupy.asarray(_spread(array))[..., 1::3]

    def get(self, tensor: Any) -> Array:
        found: Array = self.cupy.asnumpy(tensor)
        return found


class Torch:
    """torch's tensors; they know no negative strides."""

    def __init__(self, device: int) -> None:
        import torch

        self.torch: Any = torch
        torch.cuda.set_device(device)

    def has(self, dtype: np.dtype[Any]) -> bool:
        return True

    def put(self, array: Array, layout: str = "C") -> Any:
        bits = array.view(np.int16) if array.dtype == BFLOAT16 else array
        if layout == "F" and array.ndim > 1:
            axes = tuple(reversed(range(array.ndim)))
            tensor = self._put(bits.transpose(axes)).permute(axes)
        elif layout == "strided" and array.ndim:
            tensor = self._put(_spread(bits))[..., 1::3]
        else:
            tensor = self._put(bits)
        return tensor.view(self.torch.bfloat16) if array.dtype == BFLOAT16 else tensor

    def _put(self, array: Array) -> Any:
        return self.torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape).copy()).cuda()

    def get(self, tensor: Any) -> Array:
        found: Array
        if tensor.dtype == self.torch.bfloat16:
            found = tensor.contiguous().view(self.torch.int16).cpu().numpy().view(BFLOAT16)
        else:
            found = tensor.cpu().numpy()
        return found


def library(name: str, pg: ProcessGroup) -> Library:
    """One of them, by name: arguments of tests on processes are JSON. It works on the group's device."""
    assert pg.device is not None
    return Torch(pg.device) if name == "torch" else Cupy(pg.device)


async def passed_by_all(pg: ProcessGroup) -> None:
    """Rank 0 goes on when all ranks have come here, whatever it then does to the group; the others at once.

    After a barrier another rank may still be in that, and hear there of the group's end.
    """
    if pg.rank:
        pg.send(np.zeros(1), 0, async_op=True)  # it is under way, and nobody minds how it ends
    else:
        for peer in range(1, pg.size):
            await pg.recv(np.zeros(1), peer)


def occupy(cupy: Any, times: int = 1) -> None:
    """Keep CuPy's current stream busy. What comes behind must not be compiled first: that takes longer."""
    for _ in range(times):
        cupy.RawKernel(_SPIN, "spin")((1,), (1,), (np.int64(CYCLES),))


def _spread(array: Array) -> Array:
    """An array in every third place of a larger one."""
    wide = np.zeros((*array.shape[:-1], array.shape[-1] * 3), array.dtype)
    wide[..., 1::3] = array
    return wide


async def until_launched(work: Any) -> None:
    """Return when a message is given to the device; that takes turns of the loop. No stream of the caller's
    waits for it."""
    import cupy

    aside = cupy.cuda.Stream(non_blocking=True)
    while True:
        try:
            work.synchronize(aside)
        except UsageError:
            await asyncio.sleep(0.001)
        else:
            return
