"""The kernels' own code, compiled for the host: against what they are to do, on any layout."""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import subprocess
from itertools import product
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.cuda import kernels
from tests.backends.cuda import emulated
from tests.levels import few

_HOST = """
#include <cstring>
#define __device__ static
#define __global__
struct Three { unsigned x; };
thread_local Three blockIdx, threadIdx, gridDim, blockDim;
extern "C" void place(unsigned block, unsigned thread, unsigned blocks, unsigned threads) {
    blockIdx.x = block; threadIdx.x = thread; gridDim.x = blocks; blockDim.x = threads;
}
static float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
"""
BLOCKS, THREADS = 2, 3


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The code as a library of the host. Conversions of halves, machine code, are its compiler's."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    code = kernels.source()
    code = re.sub(
        r'asm\("cvt.f32.f16 .*?;\n', "_Float16 half; memcpy(&half, &bits, 2); value = half;\n", code
    )
    code = re.sub(
        r'asm\("cvt.rn.f16.f32 .*?;\n', "_Float16 half = (_Float16)value; memcpy(&bits, &half, 2);\n", code
    )
    assert "asm" not in code
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.cpp").write_text(_HOST + code)
    library = folder / "kernels.so"
    command = [compiler, "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o", str(library)]
    done = subprocess.run([*command, str(folder / "kernels.cpp")], capture_output=True, text=True)
    if done.returncode and "_Float16" in done.stderr:
        pytest.skip("this compiler has no halves")
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


class Layout(ctypes.Structure):
    """By value, as the device gets it."""

    _fields_ = (("bytes", ctypes.c_char * kernels.LAYOUT.itemsize),)


def run(library: Any, name: str, arguments: tuple[Any, ...]) -> None:
    """Run one kernel, thread after thread."""
    passed: list[Any] = []
    for i, each in enumerate(arguments):
        if isinstance(each, np.ndarray):
            passed.append(Layout.from_buffer_copy(each.tobytes()))
        elif isinstance(each, float):
            passed.append(ctypes.c_double(each))
        else:
            passed.append(ctypes.c_void_p(each) if i < 1 or each > 1 << 32 else ctypes.c_longlong(each))
    for block, thread in product(range(BLOCKS), range(THREADS)):
        library.place(block, thread, BLOCKS, THREADS)
        getattr(library, name)(*passed)


def test_all_kernels_are_there(compiled: Any) -> None:
    for name in kernels.names():
        assert getattr(compiled, name)


MOVES = [name for name in kernels.names() if name.startswith("move")]
axes = st.lists(st.tuples(st.integers(1, 4), st.integers(-3, 3), st.integers(-3, 3)), max_size=4)


@given(data=st.data())
@pytest.mark.parametrize("name", few(MOVES, ["move_u8_u8", "move_i32_i16", "move_u128_u128"]))
def test_copies_between_any_two_layouts(compiled: Any, name: str, data: st.DataObject) -> None:
    """Elements of the target are kept apart: where they coincide the result may be any of them."""
    _, to, source = name.split("_")
    to_type, source_type = (np.dtype(emulated._TYPES[kind]) for kind in (to, source))
    drawn = data.draw(axes)
    layout = np.zeros(1, kernels.LAYOUT)
    layout["axes"], layout["count"] = len(drawn), int(np.prod([length for length, *_ in drawn], dtype=int))
    span = 1
    for i, (length, to_step, source_step) in enumerate(drawn):
        apart = span * (to_step or 1)
        layout["shape"][0, i], layout["to"][0, i] = length, apart * to_type.itemsize
        layout["source"][0, i] = source_step * source_type.itemsize * (i + 1)
        span += (length - 1) * abs(apart)
    room = 4 * span + 200
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    given_bytes = rng.integers(0, 256, room * source_type.itemsize, np.uint8)
    begin = rng.integers(0, 256, room * to_type.itemsize, np.uint8)
    results = []
    for how in (emulated.run, lambda *call: run(compiled, *call)):
        target = begin.copy()
        middle = room // 2
        addresses = (
            target.ctypes.data + middle * to_type.itemsize,
            given_bytes.ctypes.data + middle * source_type.itemsize,
        )
        how(name, (*addresses, layout))
        results.append(target)
    assert np.array_equal(results[0], results[1])


@given(values=st.lists(st.floats(width=32), min_size=1, max_size=40), factor=st.floats(-4, 4))
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_factors(compiled: Any, kind: str, values: list[float], factor: float) -> None:
    dtype = np.dtype(emulated._TYPES[kind])
    with np.errstate(over="ignore", invalid="ignore"):
        begin = np.array(values, np.float64).astype(dtype)
        results = []
        for how in (emulated.run, lambda *call: run(compiled, *call)):
            array = begin.copy()
            how(f"scale_{kind}", (array.ctypes.data, array.size, factor))
            results.append(array)
    left, right = (one.astype(np.float64) for one in results)
    assert np.array_equal(left, right, equal_nan=True)


def test_every_half_is_widened_and_rounded(compiled: Any) -> None:
    for kind, dtype in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        bits = np.arange(2**16, dtype=np.uint16)
        array = bits.copy()
        run(compiled, f"scale_{kind}", (array.ctypes.data, array.size, 1.0))
        numbers = ~np.isnan(bits.view(dtype).astype(np.float32))
        assert np.array_equal(array[numbers], bits[numbers])
        assert np.isnan(array[~numbers].view(dtype).astype(np.float32)).all()


FOLDS = [name for name in kernels.names() if not name.startswith(("move", "scale"))]


@given(seed=st.integers(0, 1000), count=st.integers(1, 30))
@pytest.mark.parametrize("name", few(FOLDS, ["and_u8", "or_u16", "xor_u64", "product_c64"]))
def test_reductions(compiled: Any, name: str, seed: int, count: int) -> None:
    dtype = np.dtype(emulated._TYPES[name.split("_")[1]])
    rng = np.random.default_rng(seed)
    if dtype.kind == "c":
        left, right = ((rng.standard_normal((count, 2)) @ [1, 1j]).astype(dtype) for _ in range(2))
    else:
        left, right = (rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype) for _ in range(2))
    results = []
    for how in (emulated.run, lambda *call: run(compiled, *call)):
        array = left.copy()
        how(name, (array.ctypes.data, right.ctypes.data, count))
        results.append(array)
    if dtype.kind == "c":  # the host's NumPy may contract where the kernel does not
        assert np.allclose(results[0], results[1], rtol=1e-6)
    else:
        assert np.array_equal(results[0], results[1])


def test_all_are_loaded_at_once_and_a_compiler_that_lacks_is_told(caplog: pytest.LogCaptureFixture) -> None:
    loaded: list[str] = []

    def cupy(refuses: bool) -> Any:
        def get(name: str) -> Any:
            return SimpleNamespace(compile=lambda: 1 / 0 if refuses else loaded.append(name))

        class Cupy:
            @staticmethod
            def RawModule(**_: Any) -> Any:  # noqa: N802, its name in CuPy
                return SimpleNamespace(get_function=get)

        return Cupy()

    kernels.load(cupy(refuses=False))
    assert loaded == kernels.names()
    assert not caplog.records
    kernels.load(cupy(refuses=True))
    assert "strided device tensors" in caplog.text


def test_the_code_is_compiled_for_a_gpu() -> None:
    """By CUDA's own compiler, where it is installed; it needs no device."""
    try:
        nvrtc: Any = importlib.import_module("cupy_backends.cuda.libs.nvrtc")

        program = nvrtc.createProgram(kernels.source(), "kernels.cu", [], [])
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"CUDA's compiler is not installed: {error}")
    nvrtc.compileProgram(program, ["--gpu-architecture=sm_90", "--fmad=false"])
