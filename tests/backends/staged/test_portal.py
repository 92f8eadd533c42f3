"""Device tensors of synchronous code: a portal's loop makes the calls, and the streams are the callers'."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from aiodist.portal import SyncProcessGroup, SyncWork, init_process_group
from tests.backends.cuda.stand_in import Devices, Tensor


@pytest.fixture
def pg(devices: Devices) -> Iterator[SyncProcessGroup]:
    """A world of one, whose device tensors go through the host."""
    with init_process_group("cpu:host,cuda:host", "env://") as made:
        yield made


def in_a_batch(pg: SyncProcessGroup, issue: Callable[[], SyncWork[Tensor]]) -> SyncWork[Tensor]:
    """Issue something inside `coalesce`."""
    with pg.coalesce():
        return issue()


@pytest.mark.parametrize("batch", [False, True])
def test_operation_waits_for_the_stream_of_the_thread_that_calls(
    pg: SyncProcessGroup, devices: Devices, batch: bool
) -> None:
    tensor, out = Tensor(np.zeros(3)), Tensor(np.zeros(3))
    side, free = devices.modules["cupy.cuda"].Stream(), threading.Event()
    side.give(free.wait)
    side.give(partial(tensor.array.fill, 5))  # what the caller computes
    with side:
        issue = partial(pg.all_reduce, tensor, out=out, async_op=True)
        work = in_a_batch(pg, issue) if batch else issue()
    # Another operation behind it is over: what does not wait for the stream was copied before.
    assert pg.all_reduce(np.arange(3.0)).tolist() == [0, 1, 2]
    assert not work.done()
    free.set()
    assert work.wait().array.tolist() == [5, 5, 5]


def test_streams_of_the_loop_are_its_own_again(pg: SyncProcessGroup, devices: Devices) -> None:
    side = devices.modules["cupy.cuda"].Stream()
    with side:
        assert pg.portal.call(lambda: devices.stack()[-1]) is side
    assert pg.portal.call(lambda: devices.stack()) == [devices.callers]
