"""The thread's life, and how a process ends that has requests nobody can take back."""

from __future__ import annotations

import atexit
import faulthandler
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aiodist.backends.mpi import process, progress
from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.process import LINGER, MpiProcess
from tests.backends.mpi.fakes import Heard, Mpi, Request


class World:
    """MPI's functions of the end, which note what happens."""

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened
        self.finalized = False
        self.COMM_WORLD = self

    def Is_finalized(self) -> bool:  # noqa: N802 - mpi4py's names
        return self.finalized

    def Finalize(self) -> None:  # noqa: N802
        self._happened.append("finalize")

    def Abort(self, code: int) -> None:  # noqa: N802
        self._happened.append(f"abort {code}")


class FakeLibrary(Library):
    """A library whose requests end as a test says."""

    __slots__ = ()

    def test(self, requests: list[Any], posted: Any) -> Any:
        return Mpi().test(requests, posted)


class Scene:
    """A process, and what happens at its end."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.at_exit: list[Callable[[], None]] = []
        self.mpi = World(self.happened)
        self.process = MpiProcess()

    def library(self) -> Library:
        return FakeLibrary(self.mpi, 0, 2, True, 32767)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(progress, "GRACE", 0.0)
    found = Scene()
    happened = found.happened
    monkeypatch.setattr(atexit, "register", found.at_exit.append)
    monkeypatch.setattr(
        faulthandler,
        "dump_traceback_later",
        lambda seconds, exit, file: happened.append(f"at most {seconds:g}, exit={exit}"),
    )
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: happened.append("in time"))
    return found


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "aiodist-mpi"]


def end_of_thread(scene: Scene) -> None:
    thread = scene.process._thread
    assert thread is not None
    thread.join()


def test_groups_share_one_thread_that_ends_with_the_last(scene: Scene) -> None:
    library = scene.library()
    first = scene.process.hold(library)
    assert scene.process.hold(library) is first
    assert len(threads()) == 1
    scene.process.release()
    assert len(threads()) == 1
    scene.process.release()
    end_of_thread(scene)
    assert threads() == []
    assert len(scene.at_exit) == 1


def test_later_group_has_a_new_thread_after_the_old_one(scene: Scene) -> None:
    library = scene.library()
    first = scene.process.hold(library)
    hold_up = threading.Event()
    first.call(hold_up.wait)  # type: ignore[arg-type]
    scene.process.release()
    second = scene.process.hold(library)
    alive: list[int] = []
    second.call(lambda: alive.append(len(threads())))
    hold_up.set()
    scene.process.release()
    end_of_thread(scene)
    assert second is not first
    assert alive == [1]


def test_clean_process_leaves_the_end_to_mpi4py(scene: Scene) -> None:
    scene.process.hold(scene.library())
    scene.process.release()
    scene.process.leave()
    assert scene.happened == []


def test_group_that_was_not_closed_is_no_hindrance(scene: Scene) -> None:
    scene.process.hold(scene.library())
    scene.process.leave()
    assert threads() == []
    assert scene.happened == []


def test_open_requests_are_kept_and_the_end_is_bounded(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = scene.process.hold(scene.library())
    request = Request()
    progress.post(Heard().job("open", request))
    scene.process.release()
    end_of_thread(scene)
    assert [posted.request for posted in scene.process.quarantine] == [request]
    scene.process.leave()
    assert scene.happened == [f"at most {LINGER:g}, exit=True", "finalize", "in time"]
    said = capsys.readouterr().err
    assert said.startswith(
        "aiodist: MPI waits at most 30 s for the other processes to end: it has operations"
    )
    assert said.endswith("taken back (1)\n")


def test_after_a_broken_group_the_end_is_bounded(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.process.hold(scene.library())
    scene.process.broken = True
    scene.process.release()
    scene.process.leave()
    assert scene.happened == [f"at most {LINGER:g}, exit=True", "finalize", "in time"]
    assert "to end: a group broke" in capsys.readouterr().err


def test_requests_that_ended_meanwhile_are_forgotten(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = scene.process.hold(scene.library())
    request = Request()
    progress.post(Heard().job("open", request))
    scene.process.release()
    end_of_thread(scene)
    request.over = True
    scene.process.leave()
    assert scene.happened == []
    assert capsys.readouterr().err == ""


def test_call_that_hangs_ends_the_job(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LINGER", 0.0)
    hangs = threading.Event()
    scene.process.hold(scene.library())
    scene.process.aside(hangs.wait, "hangs")  # type: ignore[arg-type]
    scene.process.release()
    scene.process.leave()
    hangs.set()
    assert scene.happened == ["abort 1"]
    assert "does not come back" in capsys.readouterr().err


def test_thread_that_hangs_ends_the_job(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LINGER", 0.0)
    hangs = threading.Event()
    scene.process.hold(scene.library()).call(hangs.wait)  # type: ignore[arg-type]
    scene.process.leave()
    hangs.set()
    assert scene.happened == ["abort 1"]
    scene.process.release()


def test_library_that_the_user_finalised_is_left_alone(scene: Scene) -> None:
    progress = scene.process.hold(scene.library())
    progress.post(Heard().job("open", Request()))
    scene.process.release()
    end_of_thread(scene)
    scene.mpi.finalized = True
    scene.process.leave()
    assert scene.happened == []


def test_child_of_a_fork_has_no_mpi_to_leave(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.process.hold(scene.library())
    scene.process.release()
    end_of_thread(scene)
    scene.process.broken = True
    monkeypatch.setattr(os, "getpid", lambda: -1)
    scene.process.leave()
    assert scene.happened == []


def test_process_without_groups_has_nothing_to_leave(scene: Scene) -> None:
    scene.process.leave()
    assert scene.happened == []
