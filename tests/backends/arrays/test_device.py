"""Tensors on CUDA devices: everything about them but their values."""

from __future__ import annotations

import copy
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiodist.backends.arrays.device import DeviceArray, device_array, geometry
from aiodist.backends.arrays.overlap import overlaps
from aiodist.backends.arrays.view import view
from aiodist.base.errors import UsageError
from aiodist.base.types import BFLOAT16, DTYPES

F32 = np.dtype(np.float32)
AT = 0x7F00_0000_0000  # nothing lies there: who reads it crashes


def at(
    pointer: int = AT, shape: tuple[int, ...] = (4, 6), strides: tuple[int, ...] | None = None
) -> DeviceArray:
    return geometry(pointer, shape, strides, F32, 1, "tensor")


class Interface:
    """A tensor of a library that has the CUDA array interface, and more as given."""

    def __init__(self, interface: dict[str, Any] | None = None, **attributes: Any) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (4, 6),
            "typestr": "<f4",
            "data": (AT, False),
            **(interface or {}),
        }
        self.device = SimpleNamespace(id=1)
        for name, value in attributes.items():
            setattr(self, name, value)


# ── geometry ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "strides"), [((), None), ((3,), None), ((2, 3), (64, 16)), ((2, 0, 3), None)]
)
def test_shape_strides_dtype_and_address(
    dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> None:
    array = geometry(AT, shape, strides, dtype, 3, "tensor")
    assert type(array) is DeviceArray
    assert (array.shape, array.dtype, array.pointer) == (shape, dtype, AT)
    assert strides is None or array.strides == strides
    assert (array.cuda, array.source) == (3, "tensor")
    assert array.flags.c_contiguous == (strides is None)
    assert array.flags.writeable


def test_tensor_without_elements_may_have_no_address() -> None:
    array = geometry(0, (0, 3), None, F32, 0, None)
    assert array.size == 0 and array.pointer
    assert array.reshape(-1).shape == (0,)


def test_parts_have_their_place_and_owner() -> None:
    array = at()
    for part, pointer, shape in [
        (array[1:3], AT + 24, (2, 6)),
        (array[2], AT + 48, (6,)),
        (array[:, 3], AT + 12, (4,)),
        (array[1, 2], AT + 32, ()),
        (array.reshape(-1)[5], AT + 20, ()),
        (array[None, ..., 1:2], AT + 4, (1, 4, 1)),
        (array.reshape(2, 12)[1], AT + 48, (12,)),
        (array.T[1], AT + 4, (4,)),
        (array.view(np.uint8)[1], AT + 24, (24,)),
        (list(array)[3], AT + 72, (6,)),
    ]:
        assert type(part) is DeviceArray
        assert (part.pointer, part.shape, part.cuda, part.source) == (pointer, shape, 1, "tensor")


def test_overlaps_are_seen() -> None:
    array = at()
    assert overlaps(array, array[1:])
    assert not overlaps(array[:2], array[2:])
    assert not overlaps(array[:, 0], array[:, 1])
    assert not overlaps(array, at(AT + array.nbytes))
    with pytest.raises(UsageError, match="overlaps itself"):
        view(Interface({"strides": (0, 4)}), writable=True, device=True)
    assert view(Interface({"strides": (0, 4)}), writable=False, device=True).strides == (0, 4)


# ── never read ───────────────────────────────────────────────────────────────────────────────────────

GEOMETRY = {"reshape", "setflags", "squeeze", "swapaxes", "transpose", "view", "pointer"}


@pytest.mark.parametrize("name", sorted({n for n in dir(DeviceArray) if not n.startswith("_")} - GEOMETRY))
def test_no_attribute_looks_at_elements(name: str) -> None:
    array = at()
    if name in ("data", "flat"):
        with pytest.raises(TypeError, match="on CUDA device 1: the host cannot read it"):
            getattr(array, name)
    elif callable(getattr(np.ndarray, name, None)):
        with pytest.raises(TypeError, match="on CUDA device 1: the host cannot read it"):
            getattr(array, name)()
    else:
        getattr(array, name)


@pytest.mark.parametrize(
    "read",
    [
        lambda a: a + 1,
        lambda a: 1 - a,
        lambda a: a + np.zeros((4, 6)),
        lambda a: np.zeros((4, 6)) + a,
        lambda a: a @ a.T,
        lambda a: -a,
        lambda a: a.__iadd__(1),
        lambda a: a == a,
        lambda a: a < 3,
        lambda a: np.add(a, 1),
        lambda a: np.add(np.zeros((4, 6)), 1, out=a),
        lambda a: np.copyto(np.zeros((4, 6)), a),
        lambda a: np.copyto(a, np.zeros((4, 6))),
        lambda a: np.concatenate([a, a]),
        lambda a: np.array_equal(a, a),
        lambda a: np.sum(a),
        np.sort,
        lambda a: a[[0, 1]],
        lambda a: a[a.shape[0] > 2],
        lambda a: a[np.array([0])],
        lambda a: a.__setitem__(0, 1),
        lambda a: 3.0 in a,
        lambda a: a.T.reshape(-1),
        lambda a: bool(a[0, 0]),
        lambda a: int(a[0, 0]),
        lambda a: float(a[0, 0]),
        lambda a: complex(a[0, 0]),
        lambda a: f"{a[0, 0]:.3f}",
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        np.from_dlpack,
    ],
)
def test_nothing_else_does(read: Any) -> None:
    with pytest.raises(TypeError):
        read(at())


def test_it_can_be_shown() -> None:
    assert repr(at()) == str(at()) == "<DeviceArray float32[4, 6] on cuda:1>"
    assert repr(at()[1, 1]) == "<DeviceArray float32[] on cuda:1>"


# ── what libraries have ──────────────────────────────────────────────────────────────────────────────


def seen(tensor: Any) -> DeviceArray:
    array = device_array(tensor, "tensor")
    assert array is not None
    return array


def test_interface() -> None:
    tensor = Interface()
    array = seen(tensor)
    assert (array.pointer, array.shape, array.dtype, array.cuda) == (AT, (4, 6), F32, 1)
    assert array.source is tensor
    assert seen(Interface({"strides": (48, 8)})).strides == (48, 8)
    assert seen(Interface({"shape": [4, 3], "strides": [48, 8]})).strides == (48, 8)
    assert seen(Interface({"shape": (), "strides": ()})).size == 1
    assert not seen(Interface({"data": (AT, True)})).flags.writeable
    with pytest.raises(UsageError, match="read-only"):
        view(Interface({"data": (AT, True)}), writable=True, device=True)


def test_dtype_that_the_interface_cannot_name() -> None:
    assert seen(Interface({"typestr": "<V2"}, dtype=BFLOAT16)).dtype == BFLOAT16
    assert seen(Interface(dtype="no dtype of NumPy's")).dtype == F32


def test_device_comes_from_the_object_or_from_dlpack() -> None:
    assert seen(Interface(device=None, __dlpack_device__=lambda: (2, 5))).cuda == 5
    with pytest.raises(UsageError, match=r"does not say on which device.*cupy.asarray"):
        seen(Interface(device="cuda"))
    with pytest.raises(UsageError, match="does not say on which device"):
        seen(Interface(device=None, __dlpack_device__=lambda: (10, 0)))


@pytest.mark.parametrize(
    ("interface", "words"),
    [
        ({"typestr": ">f4"}, "byte order"),
        ({"typestr": "<M8[s]"}, "datetime64"),
        ({"mask": object()}, "mask"),
    ],
)
def test_tensors_that_cannot_be_communicated(interface: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        seen(Interface(interface))


class Dlpack:
    """A tensor of a library that has DLPack alone."""

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("only CuPy looks into it")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._kind, 4)


def test_dlpack_needs_cupy_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(UsageError, match=r"by DLPack only.*cupy.from_dlpack\(tensor\)"):
        device_array(Dlpack(2), "tensor")
    assert device_array(Dlpack(1), "tensor") is None  # on the host
    seen_by_cupy = Interface()
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(from_dlpack=lambda tensor: seen_by_cupy))
    array = seen(Dlpack(2))
    assert (array.pointer, array.cuda, array.source) == (AT, 1, seen_by_cupy)


def test_others_are_none() -> None:
    for other in (np.zeros(3), [1], None, b"abc", 3.0):
        assert device_array(other, "tensor") is None


def test_device_tensor_where_none_may_be() -> None:
    with pytest.raises(UsageError, match="out lies on a CUDA device"):
        view(Interface(), writable=False, what="out")


# ── torch ────────────────────────────────────────────────────────────────────────────────────────────


class FakeCuda:
    """A torch tensor of the meta device that says it were on CUDA device 2: there is none here."""

    def __init__(self, torch: Any, tensor: Any, **answers: Any) -> None:
        self._tensor = tensor
        self.device = torch.device("cuda", 2)
        self._answers = answers

    def data_ptr(self) -> int:
        return AT

    def __getattr__(self, name: str) -> Any:
        return self._answers.get(name) or getattr(self._tensor, name)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch, for which `FakeCuda` is a tensor, too."""
    module = pytest.importorskip("torch")

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (real, FakeCuda))

    real = module.Tensor
    monkeypatch.setattr(module, "Tensor", Kind("Tensor", (), {}))
    return module


def test_torch_tensors_of_the_host_are_none() -> None:
    torch = pytest.importorskip("torch")
    assert device_array(torch.zeros(3), "tensor") is None
    with pytest.raises(UsageError, match="lies on device meta"):
        view(torch.zeros(3, device="meta"), writable=False, device=True)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool", "complex64", "float16", "uint8"])
def test_torch_tensor(torch: Any, name: str) -> None:
    tensor = FakeCuda(torch, torch.empty(4, 6, dtype=getattr(torch, name), device="meta")[:, ::2])
    array = seen(tensor)
    assert (array.pointer, array.shape, array.dtype.name, array.cuda) == (AT, (4, 3), name, 2)
    assert array.strides == (6 * array.itemsize, 2 * array.itemsize)
    assert array.source is tensor


@pytest.mark.parametrize("name", ["complex32", "float8_e4m3fn", "qint8"])
def test_torch_dtypes_that_cannot_be_communicated(torch: Any, name: str) -> None:
    tensor = FakeCuda(torch, torch.empty(3, device="meta"), dtype=getattr(torch, name))
    with pytest.raises(UsageError, match=f"tensor of torch.{name} cannot be communicated"):
        seen(tensor)


def test_torch_tensors_whose_memory_says_something_else(torch: Any) -> None:
    lazy = torch.empty(3, dtype=torch.complex64, device="meta").conj()
    with pytest.raises(UsageError, match="lazy conjugate"):
        seen(FakeCuda(torch, lazy))
    with pytest.raises(UsageError, match="is sparse"):
        seen(FakeCuda(torch, torch.empty(3, device="meta"), layout=torch.sparse_coo))
