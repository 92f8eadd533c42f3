"""The end of a step of the quantised hook."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from aiodist.base.errors import NonFiniteValues, UsageError

pytest.importorskip("torch")

import torch

from aiodist.group import ErrorFeedback
from aiodist.integrations.torch.hooks import QuantizedState, quantized_hook
from aiodist.integrations.torch.work import AiodistWork
from aiodist.portal.loop_thread import Reply


class Feedback:
    """What rounding has left out of a bucket, while an operation may still be using it."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.ended = ""

    def _check(self) -> None:
        if not self.reply.settled:
            raise UsageError("feedback is in use")

    def undo(self) -> None:
        self._check()
        self.ended = "undone"

    def keep(self) -> None:
        self._check()
        self.ended = "kept"


class Waited(AiodistWork):
    """A work that lets its operation end once somebody waits for it."""

    def wait(self, *limit: Any, **more: Any) -> bool:
        if not self._reply.settled:
            threading.Thread(target=self._reply.settle, args=(None,)).start()
        return super().wait(*limit, **more)


@pytest.mark.parametrize("fails", [False, True])
def test_buckets_behind_one_that_failed_end_before_the_step_is_undone(fails: bool) -> None:
    """torch raises the first bucket's error without waiting for the others."""
    state: Any = QuantizedState.__new__(QuantizedState)
    first, second = Reply(), Reply()
    first.settle(None, NonFiniteValues() if fails else None)
    feedbacks = [Feedback(first), Feedback(second)]
    state._whole = True
    state._step = [(Waited(one.reply, [], "all_reduce"), one) for one in feedbacks]
    state.end_step()
    assert [one.ended for one in feedbacks] == ["undone" if fails else "kept"] * 2
    assert not state._step


class Bucket:
    """The part of torch's `GradBucket` that a hook looks at."""

    def __init__(self, number: int, last: int, dtype: torch.dtype = torch.float32) -> None:
        self._number, self._last = number, number == last
        self._buffer = torch.full((300,), 7.0 + number, dtype=dtype)

    def index(self) -> int:
        return self._number

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        return [self._buffer]

    def parameters(self) -> list[torch.Tensor]:
        return [PARAMETERS[self._number]]


PARAMETERS = [torch.empty(0) for _ in range(3)]


class Group:
    """A group whose averages end at once; each leaves out as much as it is the how many-th."""

    def __init__(self) -> None:
        self.issued = 0

    def all_reduce_quantized(self, tensor: torch.Tensor, *, feedback: ErrorFeedback, **_: Any) -> AiodistWork:
        self.issued += 1
        feedback.prepare((300,))[...] = self.issued
        feedback.turn()
        return self._ended(tensor)

    def allreduce(self, tensors: list[torch.Tensor], _: Any) -> AiodistWork:
        return self._ended(tensors[0])

    def _ended(self, tensor: torch.Tensor) -> AiodistWork:
        reply = Reply()
        reply.settle(None)
        return AiodistWork(reply, [tensor], "all_reduce")


def errors(state: QuantizedState) -> list[float]:
    kept = [one.error for _, one in state._feedback.values()]
    return [float(error[0]) for error in kept if error is not None]


def of(group: Group) -> Any:
    state: Any = QuantizedState.__new__(QuantizedState)
    vars(state).update(
        codec="int8", process_group=group, non_finite="keep", _feedback={}, _step=[], _whole=False
    )
    return state


def test_a_step_that_issued_no_last_bucket_is_undone() -> None:
    """Its backward pass has raised: nothing of it counts, and nor does what its rounding has left out."""
    state = of(Group())
    for number in range(3):
        quantized_hook(state, Bucket(number, last=2)).wait()
    for number in range(2):
        quantized_hook(state, Bucket(number, last=2)).wait()
    assert errors(state) == [4, 5, 3], "of the step that is under way"
    state.end_step()
    assert errors(state) == [1, 2, 3]
    for number in range(3):
        quantized_hook(state, Bucket(number, last=2)).wait()
    state.end_step()
    assert errors(state) == [6, 7, 8]


@pytest.mark.parametrize("complex_one", [0, 2])
def test_complex_buckets_begin_and_end_a_step_like_all_others(complex_one: int) -> None:
    state = of(Group())
    for step in range(4):
        for number in range(3):
            dtype = torch.complex64 if number == complex_one else torch.float32
            quantized_hook(state, Bucket(number, 2, dtype)).wait()
        assert len(state._step) == 2, "of this step alone"
        assert errors(state) == [2 * step + 1, 2 * step + 2]
