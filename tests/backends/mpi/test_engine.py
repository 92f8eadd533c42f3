"""How an engine begins and ends, on a fake library. What it computes: tests/integration, on the real ones."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aiodist.backends.base import Operation
from aiodist.backends.foreign import Setup
from aiodist.backends.mpi import engine as engine_module
from aiodist.backends.mpi import progress
from aiodist.backends.mpi.engine import MpiEngine
from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.process import this
from aiodist.backends.mpi.progress import MpiJob
from aiodist.base.types import NO_ROOT, Call, Kind, ReduceOp

SIZE = 3


class Comm:
    """Notes the names of its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> str:
            self.calls.append(name)
            return f"request {len(self.calls)}"

        return call


class Names:
    """mpi4py.MPI, of which only names count."""

    def __getattr__(self, name: str) -> str:
        return name


class Thread:
    """A Progress that posts at once, and whose requests end when told."""

    def __init__(self) -> None:
        self.jobs: list[MpiJob] = []
        self.called: list[Any] = []
        self.abandoned: list[Any] = []

    def post(self, job: MpiJob) -> None:
        self.jobs.append(job)
        list(job.post())

    def call(self, function: Any) -> None:
        self.called.append(function)

    def abandon(self, owner: object, released: Any) -> None:
        self.abandoned.append(released)


class Scene:
    """An engine that is open."""

    def __init__(self, rank: int = 0) -> None:
        self.failed: list[Exception] = []
        loop = asyncio.get_running_loop()
        setup = Setup(rank, (4, 5, 6), 77, loop, None, None, self.failed.append)  # type: ignore[arg-type]
        self.engine = MpiEngine(setup)
        self.comm, self.thread = Comm(), Thread()
        self.engine._library = Library(Names(), rank, SIZE, True, 32767)
        self.engine._progress = self.thread  # type: ignore[assignment]
        self.engine._comm = self.comm
        self.done: list[str] = []

    def start(self, operation: Operation) -> None:
        task = self.engine.prepare(operation)
        self.engine.start(task, lambda: self.done.append(operation.call.kind.name))

    async def end(self) -> None:
        """All that was posted has ended."""
        for job in self.thread.jobs:
            job.done()
        await asyncio.sleep(0)


def operation(
    kind: Kind,
    source: Any,
    target: Any,
    op: ReduceOp | None = None,
    root: int = NO_ROOT,
    detail: str = "",
    **more: Any,
) -> Operation:
    first = source if source is not None else target
    call = Call(kind, 0, first.dtype, first.shape, op, root, 0, detail)
    return Operation(call, None, source, target, None, print, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind < Kind.barrier or kind >= Kind.gather])
async def test_nothing_is_posted_for_nothing(kind: Kind) -> None:
    scene = Scene()
    source, target = np.empty((0, 3)), np.empty((0, 3))
    if kind is Kind.broadcast:
        target = source
    op = ReduceOp.SUM if "reduce" in kind.name else None
    scene.start(operation(kind, source, target, op, 0))
    assert scene.comm.calls == []
    await scene.end()
    assert scene.done == [kind.name]


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_library_that_fails_breaks_the_group() -> None:
    scene = Scene()
    scene.start(operation(Kind.all_reduce, np.ones(3), np.ones(3), ReduceOp.SUM))
    error = ValueError("MPI_ERR_COMM")
    scene.thread.jobs[0].failed(error)
    await asyncio.sleep(0)
    assert scene.failed == [error]
    scene.engine.abort(print)
    scene.thread.jobs[0].failed(error)
    await asyncio.sleep(0)
    assert scene.failed == [error], "the group is broken already"
    scene.thread.abandoned[0]()
    await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this, "broken", False)


async def test_process_with_a_broken_group_is_to_end() -> None:
    scene = Scene()
    broken = [this.broken]
    scene.engine.abort(print)
    assert [*broken, this.broken] == [False, True]
    scene.thread.abandoned[0]()
    await asyncio.sleep(0)


async def test_abort_is_quiet_when_all_have_ended() -> None:
    scene = Scene()
    released: list[str] = []
    scene.engine.abort(lambda: released.append("released"))
    await asyncio.sleep(0)
    assert released == []
    scene.thread.abandoned[0]()
    await asyncio.sleep(0)
    assert released == ["released"]


async def test_abort_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "GRACE", 0.0)
    scene = Scene()
    released = asyncio.Event()
    heard: list[str] = []
    scene.engine.abort(lambda: (heard.append("released"), released.set()))  # type: ignore[func-returns-value,arg-type]
    await released.wait()
    scene.thread.abandoned[0]()
    await asyncio.sleep(0)
    assert heard == ["released"], "once"


async def test_communicator_is_given_back_only_if_nothing_is_open_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[int] = []
    monkeypatch.setattr(this, "release", lambda: released.append(1))
    clean, broken = Scene(), Scene()
    clean.engine.close()
    clean.engine.close()
    assert len(clean.thread.called) == 1
    broken.engine.abort(print)
    broken.thread.abandoned[0]()
    await asyncio.sleep(0)
    broken.engine.close()
    assert broken.thread.called == []
    assert released == [1, 1]


async def test_engine_that_never_opened_ends_quietly() -> None:
    scene = Scene()
    scene.engine._progress = None
    released: list[str] = []
    scene.engine.abort(lambda: released.append("released"))
    scene.engine.close()
    assert released == ["released"]


def place(rank: int, size: int) -> bytes:
    return engine_module._PLACE.pack(rank, size)


def test_ranks_of_one_job_fit() -> None:
    assert MpiEngine.fits([place(2, 4), place(0, 4), place(3, 4)]) == ""


@pytest.mark.parametrize("told", [[place(0, 1), place(0, 1)], [place(0, 2), place(1, 3)]])
def test_ranks_of_several_jobs_do_not(told: list[bytes]) -> None:
    assert "start all 2 with one mpirun" in MpiEngine.fits(told)
