"""The kernels that operations need beside NCCL's: strided copies, multiplication, reductions that NCCL lacks.

All of them are loaded when a group opens. The driver loads a kernel only while the device is idle, and holds
up every other launch of the process meanwhile, but a kernel of NCCL runs until the other members have
launched theirs. CuPy's own kernels are made for each dtype and layout at their first use, so they would be
loaded at such a moment. A kernel here knows the layout by an argument.
"""

from __future__ import annotations

import logging
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

log = logging.getLogger("aiodist.cuda")

MOST_AXES = 64  # of NumPy's arrays
_THREADS = 256  # of a block
_MOST_BLOCKS = 4096  # threads beyond that take several elements each

LAYOUT = np.dtype(
    [
        ("count", np.int64),
        ("axes", np.int64),
        ("shape", np.int64, MOST_AXES),
        ("to", np.int64, MOST_AXES),
        ("source", np.int64, MOST_AXES),
    ]
)
"""The argument that says how two arrays lie: elements, axes, and for each axis its length and both strides in
bytes. The same struct stands in the source."""

_SIZES = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "u128"}
_CONVERSIONS = {"i16": "i32", "u16": "u32"}  # NCCL reduces these integers in the wider type
MOVES = tuple((name, name) for name in _SIZES.values()) + tuple(
    pair for narrow, wide in _CONVERSIONS.items() for pair in ((wide, narrow), (narrow, wide))
)
"""(to, from) of the copies. One without a conversion moves bits, whatever they mean."""
_FACTORS = {"f16": "u16", "bf16": "u16", "f32": "float", "f64": "double"}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}
_COMPLEX = {"c64": "float", "c128": "double"}

_SOURCE = """
typedef short i16; typedef int i32; typedef unsigned char u8; typedef unsigned short u16;
typedef unsigned int u32; typedef unsigned long long u64;
struct u128 { u64 low, high; };
struct Layout { long long count, axes, shape[MOST_AXES], to[MOST_AXES], source[MOST_AXES]; };

template <typename Index> __device__ Index first() { return blockIdx.x * (Index)blockDim.x + threadIdx.x; }
template <typename Index> __device__ Index step() { return gridDim.x * (Index)blockDim.x; }

template <typename To, typename From, typename Index>
__device__ void move_all(char* to, const char* source, const Layout& layout) {
    for (Index i = first<Index>(); i < (Index)layout.count; i += step<Index>()) {
        Index rest = i;
        char* there = to;
        const char* here = source;
        for (int axis = (int)layout.axes - 1; axis >= 0; --axis) {
            Index length = (Index)layout.shape[axis];
            long long place = (long long)(rest % length);
            rest /= length;
            there += place * layout.to[axis];
            here += place * layout.source[axis];
        }
        *(To*)there = (To)*(const From*)here;
    }
}

template <typename To, typename From>
__device__ void move(char* to, const char* source, const Layout& layout) {
    if (layout.count < (1ll << 31)) move_all<To, From, u32>(to, source, layout);  // and i + step fits
    else move_all<To, From, u64>(to, source, layout);
}

__device__ float f16_wide(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ u16 f16_narrow(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
__device__ float bf16_wide(u16 bits) { return __uint_as_float((u32)bits << 16); }
__device__ u16 bf16_narrow(float value) {  // ties to even; a carry may go into the exponent
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;  // NaN
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
__device__ float f32_wide(float value) { return value; }
__device__ float f32_narrow(float value) { return value; }
__device__ double f64_wide(double value) { return value; }
__device__ double f64_narrow(double value) { return value; }
"""
_MOVE = """
extern "C" __global__ void move_{0}_{1}(char* to, const char* source, Layout layout) {{
    move<{0}, {1}>(to, source, layout);
}}
"""
_SCALE = """
extern "C" __global__ void scale_{0}({1}* values, long long count, double factor) {{
    for (u64 i = first<u64>(); i < (u64)count; i += step<u64>()) {{
        auto value = {0}_wide(values[i]);
        values[i] = {0}_narrow(value * (decltype(value))factor);
    }}
}}
"""
_FOLD = """
extern "C" __global__ void {0}_{1}({1}* left, const {1}* right, long long count) {{
    for (u64 i = first<u64>(); i < (u64)count; i += step<u64>()) left[i] = left[i] {2} right[i];
}}
"""
_MULTIPLY = """
extern "C" __global__ void product_{0}({1}* left, const {1}* right, long long count) {{
    for (u64 i = first<u64>(); i < (u64)count; i += step<u64>()) {{
        {1} a = left[2 * i], b = left[2 * i + 1], c = right[2 * i], d = right[2 * i + 1];
        left[2 * i] = a * c - b * d;
        left[2 * i + 1] = a * d + b * c;
    }}
}}
"""


def source() -> str:
    """The code of all kernels, in CUDA's C++ without headers."""
    parts = [_SOURCE.replace("MOST_AXES", str(MOST_AXES))]
    parts += [_MOVE.format(*pair) for pair in MOVES]
    parts += [_SCALE.format(*pair) for pair in _FACTORS.items()]
    parts += [_FOLD.format(name, size, sign) for (name, sign), size in product(_BITWISE.items(), _integers())]
    parts += [_MULTIPLY.format(*pair) for pair in _COMPLEX.items()]
    return "".join(parts)


def names() -> list[str]:
    """The names of all kernels."""
    made = [f"move_{to}_{given}" for to, given in MOVES] + [f"scale_{name}" for name in _FACTORS]
    made += [f"{name}_{size}" for name, size in product(_BITWISE, _integers())]
    return made + [f"product_{name}" for name in _COMPLEX]


def load(cupy: Any) -> None:
    """Compile all for the current device, or take them from CuPy's cache, and load them. Blocks for a second.

    Where there is no compiler a warning says so, and an operation that needs a kernel fails.
    """
    try:
        for name in names():
            _kernel(cupy, name).compile()
    except Exception as error:
        log.warning(
            "operations on strided device tensors will fail: their kernels cannot be made (%s)", error
        )


def launch(cupy: Any, name: str, count: int, arguments: tuple[Any, ...]) -> None:
    """Give a kernel to CuPy's current stream.

    Args:
        count: elements that it works on; at least 1.
        arguments: as in the source: addresses and integers as int, factors as float, a layout as an array of
            one element.
    """
    blocks = min(-(-count // _THREADS), _MOST_BLOCKS)
    _kernel(cupy, name)((blocks,), (_THREADS,), arguments)


_made: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # by CuPy, or by what tests put there


def _kernel(cupy: Any, name: str) -> Any:
    """A kernel by name. CuPy keeps one for each device."""
    kernels = _made.get(cupy)
    if kernels is None:  # without contraction a product of complex numbers has NumPy's bits
        module = cupy.RawModule(code=source(), options=("--fmad=false",))
        kernels = _made[cupy] = {each: module.get_function(each) for each in names()}
    return kernels[name]


def _integers() -> list[str]:
    return [name for size, name in _SIZES.items() if size <= 8]


def size_name(itemsize: int) -> str:
    """The name of elements of a size in bytes: 'u32'."""
    return _SIZES[itemsize]
