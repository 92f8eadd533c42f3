"""Who may be inside NCCL with a communicator when it is aborted or asked: with one of plain Python."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aiodist.backends.nccl.lane import Lane
from tests.backends.cuda.stand_in import Devices


class Communicator:
    """In the place of NCCL's: says what is done with it, and whether somebody is inside meanwhile."""

    def __init__(self) -> None:
        self.inside = 0
        self.log: list[tuple[str, int]] = []
        self.hold = threading.Event()  # an abort waits for it
        self.hold.set()
        self.sick: Exception | None = None

    def abort(self) -> None:
        self.log.append(("abort", self.inside))
        assert self.hold.wait(30)

    def check_async_error(self) -> None:
        self.log.append(("check", self.inside))
        if self.sick is not None:
            raise self.sick

    def destroy(self) -> None:
        self.log.append(("destroy", self.inside))


@pytest.fixture
def lane() -> Iterator[Lane]:
    """One on a stand-in for CuPy."""
    devices = Devices(1)
    made = Lane(devices.modules["cupy"], 0, Communicator(), "waiting")
    yield made
    made.close()
    assert made.join(30)
    devices.close()


class Inside:
    """A thread that is inside NCCL until it is let out.

    Args:
        connecting: it waits for other members.
    """

    def __init__(self, lane: Lane, connecting: bool = False) -> None:
        self._lane, self._connecting = lane, connecting
        self.there, self.out = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self.there.wait(30)

    def _run(self) -> None:
        with self._lane.inside(self._connecting) as communicator:
            communicator.inside += 1
            self.there.set()
            assert self.out.wait(30)
            communicator.inside -= 1

    def leave(self) -> None:
        self.out.set()
        self._thread.join(30)


def background(job: Any, *arguments: Any) -> threading.Thread:
    """A thread that does something."""
    thread = threading.Thread(target=job, args=arguments)
    thread.start()
    return thread


def test_abort_waits_for_who_is_inside(lane: Lane) -> None:
    inside = Inside(lane)
    aborting = background(lane.abort, 30)
    aborting.join(0.1)
    assert lane.communicator.log == []
    inside.leave()
    aborting.join(30)
    assert lane.communicator.log == [("abort", 0)]


def test_abort_frees_who_waits_for_the_device(lane: Lane) -> None:
    """Its queue is full of kernels that only the abort ends."""
    inside = Inside(lane)
    lane.abort(0.01)
    assert lane.communicator.log == [("abort", 1)]
    inside.leave()


def test_who_connects_is_let_be(lane: Lane) -> None:
    """Nothing runs that could be stopped, and the abort would free what the thread works on."""
    inside = Inside(lane, connecting=True)
    lane.abort(0.01)
    inside.leave()
    assert lane.communicator.log == []


def test_aborted_communicator_is_given_to_nobody(lane: Lane) -> None:
    inside = Inside(lane)
    refused: list[str] = []

    def enter() -> None:
        try:
            with lane.inside():
                pass
        except ConnectionAbortedError as error:
            refused.append(str(error))

    waiting = background(enter)  # perhaps before the abort, perhaps not
    aborting = background(lane.abort, 30)
    aborting.join(0.01)
    inside.leave()
    aborting.join(30)
    waiting.join(30)
    enter()
    assert refused[-1] == "the communicator is aborted"


def test_aborted_communicator_is_not_asked(lane: Lane) -> None:
    lane.check()
    lane.abort()
    lane.check()
    lane.check(wait=False)
    assert lane.communicator.log == [("check", 0), ("abort", 0)]


def test_state_is_asked_for_while_a_call_waits_inside(lane: Lane) -> None:
    """That is what it is for."""
    inside = Inside(lane, connecting=True)
    lane.communicator.sick = RuntimeError("NCCL_ERROR_REMOTE_ERROR")
    with pytest.raises(RuntimeError, match="REMOTE"):
        lane.check(wait=False)
    inside.leave()


def test_question_and_abort_exclude_each_other(lane: Lane) -> None:
    communicator = lane.communicator
    communicator.hold.clear()
    asked, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        communicator.log.append(("check", 0))
        asked.set()
        assert go_on.wait(30)
        communicator.log.append(("checked", 0))

    communicator.check_async_error = slow
    asking = background(lane.check)
    assert asked.wait(30)
    aborting = background(lane.abort)
    aborting.join(0.1)
    go_on.set()
    asking.join(30)
    while ("abort", 0) not in communicator.log:
        aborting.join(0.001)
    lane.check(wait=False)  # does not wait for the abort, which goes on
    communicator.hold.set()
    aborting.join(30)
    assert communicator.log == [("check", 0), ("checked", 0), ("abort", 0)]
