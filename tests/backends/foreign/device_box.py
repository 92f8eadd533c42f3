"""Tensors that say they lie on a device, and engines for them.

Their memory is the host's; only this file looks at it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aiodist.backends.base import Array, Operation
from aiodist.backends.foreign import Engine, Task
from aiodist.backends.foreign.engine import Done
from tests.backends.foreign.postbox import PostboxEngine


class OnDevice:
    """A tensor on 'CUDA device' `index`; `values` is its memory.

    Args:
        values: an array; strides are kept.
        index: of the device.
    """

    def __init__(self, values: Array, index: int = 0, **changes: Any) -> None:
        self.values = values
        self.dtype = values.dtype
        self._index = index
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": values.shape,
            "strides": None if values.flags.c_contiguous else values.strides,
            "typestr": values.dtype.str,
            "data": (int(values.__array_interface__["data"][0]), False),
            **changes,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._index)


class ForDevices(Engine):
    """Mixed into an engine, has it carry out operations on `OnDevice` tensors."""

    places = frozenset({"cuda"})
    stages = True

    def prepare(self, operation: Operation) -> Task:
        return _told(operation, super().prepare(_seen(operation)))

    def start(self, task: Task, done: Done) -> None:
        task.fill()
        super().start(task, _emptied(task, done))

    def send(self, task: Task, peer: int, number: int, done: Done) -> None:
        task.fill()
        super().send(task, peer, number, done)

    def recv(self, task: Task, peer: int, number: int, done: Done) -> None:
        super().recv(task, peer, number, _emptied(task, done))


class DeviceBox(ForDevices, PostboxEngine):
    """That of clusters in one process."""

    name = "device-box"


def _seen(operation: Operation) -> Operation:
    """The operation on arrays that can be read."""
    source = _plain(operation.source)
    target = source if operation.target is operation.source else _plain(operation.target)
    o = operation
    return Operation(
        *(o.call, o.work, source, target, o.result, o.ended, o.peer, o.tag, o.senders, o.factor),
        *(o.source_sizes, o.target_sizes, o.place),
    )


def _told(operation: Operation, task: Task) -> Task:
    task.operation = operation
    return task


def _plain(given: Any) -> Any:
    if isinstance(given, list):
        return [array.view(np.ndarray) for array in given]
    return None if given is None else given.view(np.ndarray)


def _emptied(task: Task, done: Done) -> Done:
    def end() -> None:
        task.empty()
        done()

    return end
