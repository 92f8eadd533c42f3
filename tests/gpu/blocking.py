"""Calls that wait for a busy device: each is timed beside a kernel that runs for a third of a second.

    python -m tests.gpu.blocking

A kernel of NCCL runs until all members have launched theirs. A rank that waits for it inside such a call, in
the thread of its event loop, answers no message meanwhile: docs/nccl.md says what follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from aiodist.backends.arrays.device import device_array
from aiodist.backends.cuda import arrays, kernels
from tests.gpu.tensors import occupy

_WAITED = 0.1  # seconds: the kernel runs for longer, and no call here takes as long by itself


def calls(cupy: Any) -> dict[str, Callable[[], object]]:
    """The calls, by what they do. Each is made once."""
    host = np.arange(70_000)  # of a size that nothing before had
    device, room, wide = cupy.arange(1000), cupy.empty(1000, np.int64), cupy.zeros((30, 30))
    kept = cupy.cuda.alloc(48 << 20)
    compiled = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    compiled.compile()
    kernels.load(cupy)
    runtime = cupy.cuda.runtime
    return {
        "copy to the device, from ordinary memory": lambda: room.set(host[:1000]),
        "copy to the host, into ordinary memory": lambda: device.get(),
        "cupy.asarray of a host array, 8 kB": lambda: cupy.asarray(host[:1000]),
        "cupy.asarray of a host array, 560 kB": lambda: cupy.asarray(host),
        "the same again": lambda: cupy.asarray(host),
        "pinned memory: cudaHostAlloc": lambda: runtime.hostAlloc(1 << 20, 0),
        "pinned memory: from CuPy's pool": lambda: cupy.cuda.alloc_pinned_memory(8000),
        "device memory: cudaMalloc": lambda: runtime.malloc(32 << 20),
        "device memory: from CuPy's pool": lambda: cupy.empty(1000, np.int64),
        "device memory: cudaFree": lambda: (kept, runtime.free(runtime.malloc(1 << 20))),
        "a kernel that has run before": lambda: occupy_briefly(cupy),
        "a kernel that is compiled, at its first launch": lambda: compiled((1,), (1,), ()),
        "CuPy's copy of other strides, its first": lambda: wide.T.copy(),
        "aiodist's copy of other strides, its first": lambda: _copy(cupy, wide),
        "an event": lambda: cupy.cuda.Event(disable_timing=True).record(cupy.cuda.Stream(non_blocking=True)),
        "a stream": lambda: cupy.cuda.Stream(non_blocking=True),
    }


def occupy_briefly(cupy: Any) -> None:
    """Launch the kernel that keeps the device busy, for no time."""
    from tests.gpu.tensors import _SPIN

    cupy.RawKernel(_SPIN, "spin")((1,), (1,), (np.int64(1),))


def _copy(cupy: Any, wide: Any) -> None:
    """Copy a transposed matrix as operations do."""
    seen = [device_array(each, "tensor") for each in (cupy.empty((30, 30)), wide.T)]
    assert seen[0] is not None
    assert seen[1] is not None
    arrays.copy(cupy, seen[0], seen[1])


def main() -> None:
    """One line for each call."""
    import cupy

    occupy(cupy)
    cupy.cuda.Device().synchronize()
    busy, mine = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with mine:
        for name, call in calls(cupy).items():
            cupy.cuda.Device().synchronize()
            with busy:
                occupy(cupy, 2)
            begin = time.perf_counter()
            try:
                call()
                told = ""
            except Exception as error:
                told = f"  {type(error).__name__}: {error}"
            took = time.perf_counter() - begin
            over = busy.done
            waits = "waits" if took > _WAITED and over else "goes on"
            print(f"{waits:8} {took * 1e3:8.2f} ms  {name}{told}", flush=True)
            cupy.cuda.Device().synchronize()


if __name__ == "__main__":
    main()
