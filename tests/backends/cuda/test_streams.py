"""Streams as pointers, whoever they are from. What waits for what is tested on devices, in tests/gpu."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.cuda.streams import caller_streams, raw_stream
from aiodist.tensors.device import DeviceArray, geometry


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
    with pytest.raises(dist.UsageError, match="is no CUDA stream"):
        raw_stream(stream)


class Tensor:
    """An array of another library, which says on which stream its contents are being made."""

    def __init__(self, **extra: Any) -> None:
        self.__cuda_array_interface__ = {"shape": (2,), "typestr": "<f4", "data": (4096, False), **extra}


def seen(tensor: Any) -> DeviceArray:
    """Its array."""
    return geometry(4096, (2,), None, np.dtype(np.float32), 0, tensor)


def test_stream_that_a_tensor_names_is_waited_for_once() -> None:
    cupy = pytest.importorskip("cupy")
    tensors = [Tensor(stream=7), Tensor(stream=7), Tensor(stream=1), Tensor(stream=None)]
    assert caller_streams(cupy, map(seen, tensors)) == {7, 1}
