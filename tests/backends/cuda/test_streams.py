"""Streams as pointers, whoever they are from. What waits for what is tested on devices, in tests/gpu."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.arrays.device import DeviceArray, geometry
from aiodist.backends.cuda.completion import DeviceCompletion
from aiodist.backends.cuda.streams import caller_streams, make_stream, raw_stream


class Foreign:
    """A stream by NVIDIA's protocol."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 777


@pytest.mark.parametrize(
    ("stream", "pointer"),
    [
        (0, 0),
        (1234, 1234),
        (SimpleNamespace(cuda_stream=5), 5),
        (SimpleNamespace(ptr=6), 6),
        (Foreign(), 777),
    ],
)
def test_pointer_of_a_stream(stream: Any, pointer: int) -> None:
    assert raw_stream(stream) == pointer


def test_pointer_of_cupys_streams() -> None:
    cupy = pytest.importorskip("cupy")
    assert raw_stream(cupy.cuda.Stream.null) == 0
    assert raw_stream(cupy.cuda.Stream.ptds) == 2


@pytest.mark.parametrize("stream", [None, True, "0", object()])
def test_what_is_no_stream(stream: Any) -> None:
    with pytest.raises(dist.UsageError, match="is not a CUDA stream"):
        raw_stream(stream)


class Tensor:
    """An array of another library, which says on which stream its contents are being made."""

    def __init__(self, **extra: Any) -> None:
        self.__cuda_array_interface__ = {"shape": (2,), "typestr": "<f4", "data": (4096, False), **extra}


def seen(tensor: Any, device: int = 0) -> DeviceArray:
    """Its array."""
    return geometry(4096, (2,), None, np.dtype(np.float32), device, tensor)


def test_stream_that_a_tensor_names_is_waited_for_once() -> None:
    cupy = pytest.importorskip("cupy")
    tensors = [Tensor(stream=7), Tensor(stream=7), Tensor(stream=1), Tensor(stream=None)]
    assert caller_streams(cupy, map(seen, tensors)) == {7, 1}


class Stream13:
    """As CuPy 13's: its end fails where its beginning did, which Python prints."""

    def __init__(self, non_blocking: bool = False) -> None:
        self.options = (non_blocking, 0)

    def __del__(self) -> None:
        assert self.options


class Stream14(Stream13):
    """As CuPy 14's."""

    def __init__(self, non_blocking: bool = False, priority: int = 0) -> None:
        self.options = (non_blocking, priority)

    @property
    def priority(self) -> int:
        return self.options[1]


@pytest.mark.parametrize(("kind", "urgent"), [(Stream13, False), (Stream14, True)])
def test_streams_of_cupy_13_have_no_priority(kind: type, urgent: bool) -> None:
    blocks_none, priority = make_stream(SimpleNamespace(cuda=SimpleNamespace(Stream=kind))).options
    assert blocks_none
    assert (priority < 0) is urgent


def test_which_cupy_has_priorities() -> None:
    cupy = pytest.importorskip("cupy")
    assert hasattr(cupy.cuda.Stream, "priority") is (int(cupy.__version__.split(".")[0]) >= 14)


class Current:
    """Devices of which one is current, and what was given to which stream of which."""

    def __init__(self) -> None:
        self.device = 0
        self.log: list[tuple[str, int, int]] = []
        runtime = SimpleNamespace(
            eventRecord=lambda event, stream: self.log.append(("mark", self.device, stream)),
            streamWaitEvent=lambda stream, event: self.log.append(("wait", self.device, stream)),
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Device=lambda index: Switch(self, index),
            Event=lambda **options: SimpleNamespace(ptr=9),
            get_current_stream=lambda device: SimpleNamespace(ptr=0),
        )
        self.ndarray = Tensor


class Switch:
    """`with cupy.cuda.Device(1):`."""

    def __init__(self, cupy: Current, index: int) -> None:
        self.cupy, self.index, self.before = cupy, index, cupy.device

    def __enter__(self) -> None:
        self.cupy.device = self.index

    def __exit__(self, *_: object) -> None:
        self.cupy.device = self.before


def test_default_stream_is_that_of_the_tensors_device_whichever_is_current() -> None:
    cupy = Current()
    completion = DeviceCompletion(cupy, 3, [seen(Tensor(), 3)])
    completion.patience = 30
    completion.launched.set_result(SimpleNamespace(ptr=7))
    completion.synchronize()
    completion.synchronize(0)
    assert cupy.log == [("mark", 3, 0), ("wait", 3, 0), ("wait", 3, 0)]
    assert cupy.device == 0
