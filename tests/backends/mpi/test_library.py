"""What is refused before MPI is used, each with one thing to do; and how it says that requests ended."""

from __future__ import annotations

import atexit
import importlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.backends.mpi import library
from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.progress import Posted
from aiodist.base.errors import BackendUnavailable


class MpiError(Exception):
    """mpi4py.MPI.Exception."""


def mpi(level: int = 3, **more: Any) -> SimpleNamespace:
    """A module mpi4py.MPI of one process."""
    happened: list[str] = []
    comm = SimpleNamespace(Get_rank=lambda: 2, Get_size=lambda: 4, Get_attr=lambda name: 2**29 - 1)
    names = {
        "THREAD_SINGLE": 0,
        "THREAD_FUNNELED": 1,
        "THREAD_SERIALIZED": 2,
        "THREAD_MULTIPLE": 3,
        "TAG_UB": "tags",
        "COMM_WORLD": comm,
        "Is_finalized": lambda: False,
        "Is_initialized": lambda: True,
        "Query_thread": lambda: level,
        "Init_thread": lambda level: happened.append(f"init {level}"),
        "Finalize": lambda: happened.append("finalise"),
        "REQUEST_NULL": "null",
        "Exception": MpiError,
        "SUCCESS": 0,
        "happened": happened,
    }
    return SimpleNamespace(**(names | more))


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", None)


def install(monkeypatch: pytest.MonkeyPatch, module: Any, version: str = "4.1.2") -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(__version__=version))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)


def test_what_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = mpi()
    install(monkeypatch, module)
    found = library.load()
    assert (found.rank, found.size, found.multiple, found.highest_tag) == (2, 4, True, 2**29 - 1)
    assert library.load() is found
    assert module.happened == []


def test_library_that_nobody_initialised_is_initialised_for_all_threads_and_finalised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_exit: list[tuple[Callable[..., None], Any]] = []
    monkeypatch.setattr(atexit, "register", lambda function, *args: at_exit.append((function, args)))
    module = mpi(Is_initialized=lambda: False)
    install(monkeypatch, module)
    library.load()
    assert module.happened == ["init 3"]
    ((finalise, args),) = at_exit
    finalise(*args)
    assert module.happened == ["init 3", "finalise"]
    module.Is_finalized = lambda: True
    finalise(*args)
    assert module.happened == ["init 3", "finalise"]


def test_one_thread_at_a_time_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, mpi(level=2))
    assert not library.load().multiple


@pytest.mark.parametrize(("level", "name"), [(0, "single"), (1, "funneled")])
def test_less_than_that_is_refused(level: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, mpi(level=level))
    with pytest.raises(BackendUnavailable, match=f"thread level '{name}'.*mpi4py.rc.thread_level"):
        library.load()


def test_finalised_is_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    module = mpi()
    install(monkeypatch, module)
    library.load()
    module.Is_finalized = lambda: True
    with pytest.raises(BackendUnavailable, match="has been finalised"):
        library.load()


def test_finalised_before_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, mpi(Is_finalized=lambda: True, Query_thread=lambda: 1 / 0))
    with pytest.raises(BackendUnavailable, match="has been finalised"):
        library.load()


def test_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(BackendUnavailable, match=r"^mpi4py is not installed\. pip install 'aiodist\[mpi\]'$"):
        library.load()


def test_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        if name == "mpi4py":
            return SimpleNamespace(__version__="4.0.0")
        raise RuntimeError("cannot load MPI library\nlibmpi.so: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(BackendUnavailable, match=r"finds no MPI library \(libmpi.so: cannot.*pip install"):
        library.load()


def test_old_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, mpi(), "3.1.6")
    with pytest.raises(BackendUnavailable, match=r"3\.1\.6 is too old.*mpi4py>=4"):
        library.load()


# ── requests that ended ──────────────────────────────────────────────────────────────────────────────────


def status(count: int, source: int = 3) -> SimpleNamespace:
    return SimpleNamespace(Get_count=lambda datatype: count, Get_source=lambda: source)


def asking(ended: list[int] | Exception | None, *statuses: Any, after: list[Any] | None = None) -> Library:
    """A library that answers one Testsome."""

    def test_some(requests: list[Any], out: list[Any]) -> list[int] | None:
        if after is not None:
            requests[:] = after
        if isinstance(ended, Exception):
            raise ended
        out[: len(statuses)] = statuses
        return ended

    module = mpi(Request=SimpleNamespace(Testsome=test_some))
    return Library(module, 0, 2, True, 32767)


def test_index_of_each_that_ended() -> None:
    posted = [Posted("a"), Posted("b"), Posted("c")]
    assert asking([2, 0], status(0), status(0)).test(["a", "b", "c"], posted) == [(2, None), (0, None)]
    assert asking([]).test(["a"], posted[:1]) == []
    assert asking(None).test(["a"], posted[:1]) == []


def test_message_of_another_length_is_an_error() -> None:
    posted = [Posted("a", "BYTE", 5), Posted("b", "BYTE", 7)]
    ended = asking([0, 1], status(5), status(6)).test(["a", "b"], posted)
    assert ended[0] == (0, None)
    assert ended[1][0] == 1
    assert str(ended[1][1]) == "a message of 6 elements came from 3, 7 were expected"


def test_error_is_that_of_all_that_ended_with_it() -> None:
    error = MpiError("truncated")
    posted = [Posted("a"), Posted("b"), Posted("c")]
    found = asking(error, after=["null", "b", "null"]).test(["a", "b", "c"], posted)
    assert found == [(0, error), (2, error)]


def test_status_says_more_than_the_error() -> None:
    mpi = asking(MpiError("in status"), after=["null", "null"])
    mpi._statuses.extend(SimpleNamespace(Get_error=code) for code in (lambda: 0, lambda: 15))
    found = mpi.test(["a", "b"], [Posted("a"), Posted("b")])
    assert [(index, str(error)) for index, error in found] == [(0, "15"), (1, "15")]
    assert mpi._statuses == [], "the next error is another one"
