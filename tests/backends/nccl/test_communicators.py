"""Unique ids in both forms, by the real library, and what can be known of communicators without a device."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import aiodist as dist
from aiodist.backends.nccl import NcclEngine, communicators

SIGNED = tuple(range(-128, 0))
BOTH = pytest.mark.parametrize(
    ("version", "kind"), [("13.6.0", tuple), ("14.2.0", bytes), ("15.0.0a1", bytes)]
)


@pytest.fixture
def cupy() -> Any:
    """The real one, with the real NCCL."""
    module = pytest.importorskip("cupy")
    nccl = pytest.importorskip("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("NCCL's library is not installed")
    return module


def test_unique_ids_are_bytes_differ_and_go_back_in_the_form_that_this_cupy_takes(cupy: Any) -> None:
    code = (  # each opens sockets, for as long as nobody meets there
        "import cupy\n"
        "from cupy.cuda import nccl\n"
        "from aiodist.backends.nccl import communicators\n"
        "made = [nccl.get_unique_id() for _ in range(3)]\n"
        "ids = [communicators.as_bytes(unique) for unique in made]\n"
        "assert [communicators.as_accepted(cupy, unique) for unique in ids] == made\n"
        "ids.append(communicators.unique_id())\n"
        "print(len(set(ids)), {type(unique).__name__ for unique in ids}, {len(unique) for unique in ids})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"4 {{'bytes'}} {{{NcclEngine.greets}}}", done.stderr


@BOTH
def test_unique_id_in_the_forms_of_cupy_13_and_14(version: str, kind: type) -> None:
    cupy = SimpleNamespace(__version__=version)
    given: Any = (*SIGNED[64:], *range(64)) if kind is tuple else bytes(range(192, 256)) + bytes(range(64))
    unique = communicators.as_bytes(given)
    assert unique == bytes(range(192, 256)) + bytes(range(64))
    accepted = communicators.as_accepted(cupy, unique)
    assert type(accepted) is kind
    assert accepted == given


def test_splitting_is_known_of_this_cupy(cupy: Any) -> None:
    can = int(cupy.__version__.split(".")[0]) >= 14
    assert communicators.can_split() is can


def test_calls_that_are_made_exist(cupy: Any) -> None:
    """By name, and with as many arguments: Cython says them in the first line of the documentation."""
    expected = {
        "allReduce": 6,
        "reduce": 7,
        "broadcast": 6,
        "allGather": 5,
        "reduceScatter": 6,
        "send": 5,
        "recv": 5,
        "abort": 0,
        "destroy": 0,
        "size": 0,
        "check_async_error": 0,
    }
    for name, count in expected.items():
        method = getattr(cupy.cuda.nccl.NcclCommunicator, name)
        line = (inspect.getdoc(method) or "").partition("\n")[0]
        if "(" not in line:
            continue  # built without signatures
        arguments = line[line.index("(") + 1 : line.rindex(")")].split(", ")
        assert len(arguments) - 1 == count, line


def test_without_a_device_nccl_says_so_and_nothing_hangs(cupy: Any) -> None:
    if cupy.cuda.runtime.driverGetVersion():
        pytest.skip("there is a driver")
    code = (
        "import cupy\n"
        "from aiodist.backends.nccl import communicators\n"
        "try: communicators.connect(cupy, 1, communicators.unique_id(), 0)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("NcclError NCCL_ERROR_UNHANDLED_CUDA_ERROR"), done.stderr
    with pytest.raises(dist.BackendUnavailable, match="no NVIDIA driver"):
        NcclEngine.check()


def test_missing_nccl_is_named() -> None:
    cupy = pytest.importorskip("cupy")
    nccl = pytest.importorskip("cupy.cuda.nccl")
    available = nccl.available
    nccl.available = False
    try:
        with pytest.raises(dist.BackendUnavailable, match=r"pip install nvidia-nccl-cu1[23]$"):
            communicators.require_nccl(cupy)
    finally:
        nccl.available = available


def test_missing_nccl_is_named_where_warnings_are_errors() -> None:
    """CuPy warns by itself."""
    pytest.importorskip("cupy")
    code = (
        "import cupy, sys, warnings\n"
        "sys.modules['cupy_backends.cuda.libs.nccl'] = None\n"
        "warnings.simplefilter('error')\n"
        "from aiodist.backends.nccl import communicators\n"
        "try: communicators.require_nccl(cupy)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("BackendUnavailable NCCL's library is not installed"), done.stderr


class Parent:
    """A communicator that is asked for a part: notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def commSplit(self, color: int, key: int) -> Parent | None:  # noqa: N802
        self.asked.append((color, key))
        return None if color == -1 else self


def test_members_of_a_part_and_who_is_left_out() -> None:
    parent = Parent()
    assert communicators.split(parent, 2) is parent
    assert communicators.split(parent, None) is None
    assert parent.asked == [(0, 2), (-1, 0)]
