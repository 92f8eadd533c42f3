"""Strange things to pass to a group, and every call with a place for one."""

from __future__ import annotations

import array
import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.group import ProcessGroup

ThingMaker = Callable[[], Any]


class Raises:
    """Whatever is asked of it, it raises an error of its own."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Odd:
    """An object whose protocols are what they are given as."""

    def __init__(self, **protocols: Any) -> None:
        self.__dict__.update(protocols)


class OddDlpack:
    """An object with a DLPack of its own."""

    def __init__(self, device: Any, capsule: Any) -> None:
        self._device, self._capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self._device

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule


class Struct(ctypes.Structure):
    """A buffer of a format that NumPy does not communicate."""

    _fields_ = (("a", ctypes.c_int),)


def interface(**changes: Any) -> Any:
    """An object with an `__array_interface__` of three float32."""
    return Odd(
        __array_interface__={"shape": (3,), "typestr": "<f4", "data": (8, False), "version": 3} | changes
    )


def released() -> Any:
    """A view whose memory was given back."""
    view = memoryview(bytearray(3))
    view.release()
    return view


def read_only() -> Any:
    """An array that may not be written."""
    made = np.ones(3)
    made.setflags(write=False)
    return made


PLAIN: dict[str, ThingMaker] = {
    "64 dimensions": lambda: np.ones((1,) * 64, np.float32),
    "0-d": lambda: np.array(1.0),
    "empty": lambda: np.empty((0, 3)),
    "empty and wide": lambda: np.empty((0, 2**40), np.uint8),
    "many empty rows": lambda: np.broadcast_to(np.uint8(1), (2**62, 0)),
    "masked": lambda: np.ma.masked_invalid([1.0, np.nan]),
    "matrix": lambda: np.matrix([[1.0, 2.0]]),
    "records": lambda: np.zeros(3, [("a", "f4")]),
    "objects": lambda: np.array([None, 1], object),
    "strings": lambda: np.array(["a"]),
    "StringDType": lambda: np.array(["a"], np.dtypes.StringDType()),
    "dates": lambda: np.array(["2020-01-01"], "M8[D]"),
    "void": lambda: np.zeros(3, "V4"),
    "no bytes": lambda: np.zeros(3, "S0"),
    "long double": lambda: np.ones(3, np.longdouble),
    "big-endian": lambda: np.ones(3, ">f4"),
    "read-only": read_only,
    "backwards": lambda: np.arange(6.0)[::-1],
    "overlaps itself": lambda: np.lib.stride_tricks.as_strided(np.zeros(5), (3, 3), (8, 8)),
    "expanded": lambda: np.broadcast_to(np.ones(1), (4,)),
    "bytes": lambda: b"abc",
    "bytearray": lambda: bytearray(b"abc"),
    "array.array": lambda: array.array("d", [1, 2]),
    "characters": lambda: array.array("w" if sys.version_info >= (3, 13) else "u", "ab"),
    "ctypes": lambda: (ctypes.c_float * 3)(),
    "structure": Struct,
    "memoryview": lambda: memoryview(bytearray(12)).cast("f"),
    "released": released,
    "integer": lambda: 3,
    "huge integer": lambda: 10**5000,
    "above 64 bits": lambda: 2**64,
    "float": lambda: 3.5,
    "infinite": lambda: float("inf"),
    "nan": lambda: float("nan"),
    "NumPy's scalar": lambda: np.float32(3),
    "None": lambda: None,
    "list": lambda: [1, 2],
    "list of nothing": lambda: [None],
    "no list": list,
    "string": lambda: "abc",
    "type": lambda: np.ndarray,
    "module": lambda: np,
    "function": lambda: read_only,
    "raises": Raises,
    "no interface": lambda: Odd(__array_interface__="nonsense"),
    "interface of no type": lambda: interface(typestr="zz"),
    "interface of address 0": lambda: interface(data=(0, False)),
    "DLPack of nothing": lambda: OddDlpack((1, 0), 7),
    "DLPack on no device": lambda: OddDlpack("cpu", 7),
    "no CUDA interface": lambda: Odd(__cuda_array_interface__=5),
    "CUDA interface": lambda: Odd(
        __cuda_array_interface__={"shape": (3,), "typestr": "<f4", "data": (1234, False), "version": 3}
    ),
}


def of_torch() -> dict[str, ThingMaker]:
    """torch's strange tensors."""
    torch: Any = __import__("torch")

    def freed() -> Any:
        tensor = torch.ones(3)
        tensor.untyped_storage().resize_(0)
        return tensor

    def inference() -> Any:
        with torch.inference_mode():
            return torch.ones(3)

    def fake() -> Any:
        with __import__("torch._subclasses.fake_tensor", fromlist="x").FakeTensorMode():
            return torch.ones(3)

    def nested(**options: Any) -> Any:
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], **options)

    made: dict[str, ThingMaker] = {
        "64 dimensions": lambda: torch.ones((1,) * 64),
        "65 dimensions": lambda: torch.ones((1,) * 65),
        "nested": nested,
        "jagged": lambda: nested(layout=torch.jagged),
        "coo": lambda: torch.eye(3).to_sparse(),
        "csr": lambda: torch.eye(3).to_sparse_csr(),
        "mkldnn": lambda: torch.ones(3, 3).to_mkldnn(),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "meta": lambda: torch.ones(3, device="meta"),
        "fake": fake,
        "masked": lambda: torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True])),
        "0-d": lambda: torch.tensor(1.0),
        "needs a gradient": lambda: torch.ones(3, requires_grad=True),
        "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
        "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
        "negative": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
        "bfloat16": lambda: torch.ones(3, 4, dtype=torch.bfloat16).t(),
        "0-d bfloat16": lambda: torch.tensor(1.0, dtype=torch.bfloat16),
        "expanded": lambda: torch.ones(1).expand(5),
        "of inference": inference,
        "freed": freed,
        "storage": lambda: torch.ones(3).untyped_storage(),
        "type": lambda: torch.Tensor,
    }
    for name in ("float8_e4m3fn", "complex32", "uint16", "uint1", "bits8", "quint4x2", "float4_e2m1fn_x2"):
        dtype = getattr(torch, name, None)
        if dtype is not None:
            made[name] = partial(torch.empty, 3, dtype=dtype)
    return made


SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


def calls(pg: ProcessGroup, x: Any, prints: bool = True) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every call with `x` wherever something is passed. The group has one member.

    Args:
        prints: torch can print it, as NumPy does with what is no dtype, and does not crash.
    """
    f3 = np.ones(3)
    one = np.ones(1)
    methods: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("all_reduce", pg.all_reduce),
        ("broadcast", pg.broadcast),
        ("reduce", pg.reduce),
        ("all_gather", pg.all_gather),
        ("gather", pg.gather),
        ("reduce_scatter", pg.reduce_scatter),
        ("all_to_all", pg.all_to_all),
    )
    for name, method in methods:
        yield name, partial(method, x, async_op=True)
        if name != "broadcast":
            yield f"{name} out", partial(method, f3, out=x, async_op=True)
            yield f"{name} to out", partial(method, x, out=f3, async_op=True)
        yield f"{name} timeout", partial(method, f3, timeout=x, async_op=True)
    yield "all_reduce op", lambda: pg.all_reduce(f3, x, async_op=True)
    yield "all_reduce average", lambda: pg.all_reduce(x, AVG, async_op=True)
    yield "factor", lambda: pg.all_reduce(f3, dist.premul_sum(x), async_op=True)
    yield "factor of x", lambda: pg.all_reduce(x, dist.premul_sum(2.0), async_op=True)
    yield "src", lambda: pg.broadcast(f3, x, async_op=True)
    yield "scatter", lambda: pg.scatter(f3, x, async_op=True)
    yield "scatter out", lambda: pg.scatter(x, f3, async_op=True)
    yield "splits", lambda: pg.all_to_all(one, None, x, x, async_op=True)
    yield "in_splits", lambda: pg.all_to_all(one, np.ones(1), x, async_op=True)
    yield "out_splits", lambda: pg.all_to_all(one, None, None, x, async_op=True)
    yield "send dst", lambda: pg.send(f3, x)
    # What is received is sent: this rank may be its own sender.
    yield "recv", lambda: [pg.recv(x, 0, 5, async_op=True), pg.send(x, 0, 5, async_op=True)]
    yield "recv tag", lambda: [pg.recv(f3, None, x, async_op=True), pg.send(f3, 0, x, async_op=True)]
    yield "objects", lambda: pg.all_gather_object(x, async_op=True)
    yield "pickles", lambda: pg.all_gather_object(x, allow_pickle=True, async_op=True)
    yield "broadcast_object src", lambda: pg.broadcast_object(1, x, async_op=True)
    yield "scatter_object", lambda: pg.scatter_object(x, async_op=True)
    yield "send_object dst", lambda: pg.send_object(1, x)
    yield (
        "recv_object tag",
        lambda: [pg.recv_object(None, x, async_op=True), pg.send_object(1, 0, x, async_op=True)],
    )
    yield "new_group", lambda: pg.new_group(x)
    yield "new_group name", lambda: pg.new_group(name=x)
    yield "new_group timeout", lambda: pg.new_group(timeout=x)
    yield "split", lambda: pg.split(x)
    yield "split key", lambda: pg.split(0, x)
    yield "split name", lambda: pg.split(0, name=x)
    if prints:
        yield "empty dtype", lambda: pg.empty(3, x)
    yield "agree timeout", lambda: pg.agree(timeout=x)
    yield "pending_joins timeout", lambda: pg.pending_joins(timeout=x)
    if type(x) not in (int, list):  # such are sizes
        yield "empty", lambda: pg.empty(x)
        yield "rebuild", lambda: pg.rebuild(min_size=x)
        yield "shrink", lambda: pg.shrink([x])
        yield "grow", lambda: pg.grow(x)
    yield from _of_torchs_names(pg, x)


def _of_torchs_names(pg: ProcessGroup, x: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    f3, many = np.ones(3), [x]
    yield "d.all_gather", lambda: dist.all_gather(x, f3, pg, True)
    yield "d.all_gather list", lambda: dist.all_gather(many, x, pg, True)
    yield "d.all_gather_into_tensor", lambda: dist.all_gather_into_tensor(x, f3, pg, True)
    yield "d.all_gather_into_tensor in", lambda: dist.all_gather_into_tensor(np.ones(3), x, pg, True)
    yield (
        "d.all_gather_into_tensor self",
        lambda: dist.all_gather_into_tensor(np.ones((1,) * 64), x, pg, True),
    )
    yield "d.reduce_scatter", lambda: dist.reduce_scatter(f3, x, group=pg, async_op=True)
    yield "d.reduce_scatter list", lambda: dist.reduce_scatter(x, many, group=pg, async_op=True)
    yield "d.reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(x, f3, group=pg, async_op=True)
    yield "d.reduce_scatter_tensor in", lambda: dist.reduce_scatter_tensor(f3, x, group=pg, async_op=True)
    yield "d.gather", lambda: dist.gather(f3, x, 0, pg, True)
    yield "d.gather list", lambda: dist.gather(x, many, 0, pg, True)
    yield "d.scatter", lambda: dist.scatter(f3, x, 0, pg, True)
    yield "d.scatter list", lambda: dist.scatter(x, many, 0, pg, True)
    yield "d.all_to_all", lambda: dist.all_to_all(x, x, pg, True)
    yield "d.all_to_all list", lambda: dist.all_to_all(many, many, pg, True)
    yield "d.all_to_all_single", lambda: dist.all_to_all_single(x, x, group=pg, async_op=True)
    yield "d.splits", lambda: dist.all_to_all_single(np.ones(1), np.ones(1), x, x, pg, True)
    yield "d.group", lambda: dist.all_reduce(f3, SUM, x, True)
    yield "d.src", lambda: dist.broadcast(f3, x, pg, True)
    yield "d.group_src", lambda: dist.broadcast(f3, None, pg, True, x)
    yield "d.isend", lambda: dist.isend(f3, x, pg)
    yield "d.irecv tag", lambda: [dist.irecv(f3, None, pg, x), dist.isend(f3, 0, pg, x)]
    yield "d.batch", lambda: dist.batch_isend_irecv(x)
    yield "d.batch list", lambda: dist.batch_isend_irecv(many)
    yield "d.P2POp", lambda: dist.P2POp(x, f3, 0)
    yield "d.batch tensor", lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0, pg)])
    yield "d.batch peer", lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, f3, x, pg)])
    yield "d.all_gather_object", lambda: dist.all_gather_object(x, 1, pg)
    yield "d.gather_object", lambda: dist.gather_object(1, x, 0, pg)
    yield "d.broadcast_object_list", lambda: dist.broadcast_object_list(x, 0, pg)
    yield "d.scatter_object_list", lambda: dist.scatter_object_list(x, [1], 0, pg)
    yield "d.scatter_object_list in", lambda: dist.scatter_object_list([None], x, 0, pg)
    yield "d.send_object_list", lambda: dist.send_object_list(x, 0, pg)
    yield "d.recv_object_list", lambda: dist.recv_object_list(x, 0, pg)
    yield "d.new_group", lambda: dist.new_group(x)
    yield "d.new_group backend", lambda: dist.new_group(None, backend=x)
    yield "d.new_group name", lambda: dist.new_group(group_desc=x)
    yield "d.new_subgroups", lambda: dist.new_subgroups(x)
    yield "d.new_subgroups group", lambda: dist.new_subgroups(1, x)
    yield "d.by_enumeration", lambda: dist.new_subgroups_by_enumeration(x)
    yield "d.split_group", lambda: dist.split_group(pg, x)
    yield "d.get_rank", lambda: dist.get_rank(x)
    yield "d.get_world_size", lambda: dist.get_world_size(x)
    yield "d.get_global_rank", lambda: dist.get_global_rank(pg, x)
    yield "d.get_group_rank", lambda: dist.get_group_rank(pg, x)
    yield "d.get_process_group_ranks", lambda: dist.get_process_group_ranks(x)
    yield "d.get_backend", lambda: dist.get_backend(x)
    yield "gradients", lambda: dist.GradientSync(pg, x)
    yield "gradients list", lambda: dist.GradientSync(pg, many)
    yield "gradients size", lambda: dist.GradientSync(pg, [f3], x)
    yield "gradients state", lambda: dist.GradientSync(pg, [f3], state=many)
