"""The end of a step of the quantised hook."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from aiodist.base.errors import NonFiniteValues, UsageError

pytest.importorskip("torch")

from aiodist.integrations.torch.hooks import QuantizedState
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
    state._step = [(Waited(one.reply, [], "all_reduce"), one) for one in feedbacks]
    state.end_step()
    assert [one.ended for one in feedbacks] == ["undone" if fails else "kept"] * 2
    assert not state._step
