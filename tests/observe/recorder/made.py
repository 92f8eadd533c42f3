"""Recorders to test with: their time is a number that goes up by one at each look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from aiodist.base.operations import Kind
from aiodist.base.types import Call, ReduceOp
from aiodist.observe.recorder import Recorder, Track
from aiodist.observe.recorder.layout import SIZE


def ticking(start: float = 1.0) -> Callable[[], float]:
    """A clock that is one second later whenever it is looked at."""
    numbers = count()
    return lambda: start + next(numbers)


def a_recorder(memory: Any = None, clock: Callable[[], float] | None = None) -> Recorder:
    """The recorder of rank 3 of 8, process 4711."""
    made = Recorder(bytearray(SIZE) if memory is None else memory, 4711, clock or ticking(), 5000.0)
    made.take_part(3, 8, 2)
    return made


def a_track(name: str = "world", ranks: Sequence[int] = range(8)) -> Track:
    """The track of a group in a recorder of its own."""
    return a_recorder().track(name, 0, ranks)


def a_call(number: int = 0, count: int = 3, kind: Kind = Kind.all_reduce) -> Call:
    """A call of so many floats."""
    return Call(kind, number, np.dtype(np.float32), (count,), ReduceOp.SUM)
