"""Which of MPI's calls an operation makes, on which memory; and how an engine ends. The library is a fake."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiodist.backends.base import Operation
from aiodist.backends.foreign import Setup
from aiodist.backends.foreign.moves import Move
from aiodist.backends.mpi import engine as engine_module
from aiodist.backends.mpi import progress, tables
from aiodist.backends.mpi.engine import MpiEngine
from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.process import this
from aiodist.backends.mpi.progress import Job
from aiodist.types import NO_ROOT, Call, Kind, ReduceOp

SIZE = 3


class Comm:
    """Notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> str:
            told = [self._told(arg) for arg in args]
            self.calls.append((name, *told))
            return f"request {len(self.calls)}"

        return call

    @staticmethod
    def _told(arg: Any) -> Any:
        if not isinstance(arg, list) or isinstance(arg[0], int):
            return arg
        memory, count, datatype = arg
        return (
            (memory.tobytes(), count, datatype) if memory.nbytes < 200 else (memory.nbytes, count, datatype)
        )


class Names:
    """mpi4py.MPI, of which only names count."""

    def __getattr__(self, name: str) -> str:
        return name


class Thread:
    """A Progress that posts at once, and whose requests end when told."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.posted: list[Any] = []
        self.called: list[Any] = []
        self.abandoned: list[Any] = []

    def post(self, job: Job) -> None:
        self.jobs.append(job)
        self.posted.append(list(job.post()))

    def call(self, function: Any) -> None:
        self.called.append(function)

    def abandon(self, owner: object, quiet: Any) -> None:
        self.abandoned.append(quiet)


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


async def test_all_reduce_in_place_and_not() -> None:
    scene = Scene()
    tensor, out = np.arange(3, dtype=np.int32), np.zeros(3, np.int32)
    scene.start(operation(Kind.all_reduce, tensor, tensor, ReduceOp.MAX))
    scene.start(operation(Kind.all_reduce, tensor, out, ReduceOp.PRODUCT))
    memory, empty = (tensor.tobytes(), 3, "INT32_T"), (out.tobytes(), 3, "INT32_T")
    assert scene.comm.calls == [
        ("Iallreduce", "IN_PLACE", memory, "MAX"),
        ("Iallreduce", memory, empty, "PROD"),
    ]
    assert scene.done == []
    await scene.end()
    assert scene.done == ["all_reduce", "all_reduce"]


async def test_only_the_root_of_a_reduction_has_a_target() -> None:
    tensor = np.arange(4.0)
    memory = (tensor.tobytes(), 4, "DOUBLE")
    root, other = Scene(rank=1), Scene(rank=2)
    root.start(operation(Kind.reduce, tensor, tensor, ReduceOp.SUM, 1))
    other.start(operation(Kind.reduce, tensor, None, ReduceOp.AVG, 1))
    assert root.comm.calls == [("Ireduce", "IN_PLACE", memory, "SUM", 1)]
    assert other.comm.calls == [("Ireduce", memory, None, "SUM", 1)]


async def test_parts_are_counted_each() -> None:
    scene = Scene(rank=1)
    part, whole = np.arange(2, dtype=np.uint8), np.arange(6, dtype=np.uint8)
    small, large = (part.tobytes(), 2, "UINT8_T"), (whole.tobytes(), 2, "UINT8_T")
    scene.start(operation(Kind.all_gather, part, whole))
    scene.start(operation(Kind.gather, part, whole, root=1))
    scene.start(operation(Kind.gather, part, None, root=0))
    scene.start(operation(Kind.scatter, whole, part, root=1))
    scene.start(operation(Kind.reduce_scatter, whole, part, ReduceOp.BXOR))
    scene.start(operation(Kind.all_to_all, whole, whole.copy()))
    assert scene.comm.calls == [
        ("Iallgather", small, large),
        ("Igather", small, large, 1),
        ("Igather", small, None, 0),
        ("Iscatter", large, small, 1),
        ("Ireduce_scatter_block", large, small, "BXOR"),
        ("Ialltoall", large, large),
    ]


async def test_halves_move_as_bits_and_are_reduced_wide() -> None:
    scene = Scene()
    tensor = np.arange(3).astype(np.float16)
    scene.start(operation(Kind.broadcast, tensor, tensor, root=2))
    scene.start(operation(Kind.all_reduce, tensor, tensor, ReduceOp.SUM))
    (_, moved, root), (_, _, reduced, op) = scene.comm.calls
    assert (moved, root) == ((tensor.tobytes(), 3, "UINT16_T"), 2)
    assert reduced[1:] == (3, "FLOAT")
    assert op == "SUM"


async def test_sums_of_small_integers_are_reduced_wide() -> None:
    scene = Scene()
    for op in (ReduceOp.SUM, ReduceOp.MAX):
        tensor = np.arange(3, dtype=np.int8)
        scene.start(operation(Kind.all_reduce, tensor, tensor, op))
    assert [call[2][1:] for call in scene.comm.calls] == [(3, "UINT32_T"), (3, "INT8_T")]


async def test_bools_are_reduced_as_bytes() -> None:
    scene = Scene()
    tensor = np.array([True, False])
    scene.start(operation(Kind.all_reduce, tensor, tensor, ReduceOp.SUM))
    assert scene.comm.calls == [("Iallreduce", "IN_PLACE", (b"\1\0", 2, "UINT8_T"), "MAX")]


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


async def test_messages_have_the_tag_of_their_number() -> None:
    scene = Scene()
    array = np.arange(3, dtype=np.int16)
    scene.engine.send(SimpleNamespace(source=array), 2, 9, print)  # type: ignore[arg-type]
    scene.engine.recv(SimpleNamespace(target=array), 1, 32767, print)  # type: ignore[arg-type]
    memory = (array.tobytes(), 3, "INT16_T")
    assert scene.comm.calls == [("Isend", memory, 2, 10), ("Irecv", memory, 1, 1)]
    (sent,), (received,) = scene.thread.posted
    assert sent.datatype is None, "only a receive can be taken back, and has a length to check"
    assert (received.datatype, received.count) == ("INT16_T", 3)


async def test_exchange_receives_first() -> None:
    scene = Scene()
    a, b = np.arange(2, dtype=np.uint8), np.arange(3, dtype=np.uint8)
    scene.engine.exchange([Move(True, 1, a), Move(False, 1, b), Move(True, 2, b)], print)
    assert [(call[0], call[2], call[3]) for call in scene.comm.calls] == [
        ("Irecv", 1, 0),
        ("Isend", 1, 0),
        ("Isend", 2, 0),
    ]


async def test_uneven_parts_are_messages() -> None:
    scene = Scene(rank=1)
    source, target = np.arange(5, dtype=np.uint8), np.zeros(3, np.uint8)
    sizes = {"source_sizes": [4, 1, 0], "target_sizes": [2, 1, 0]}
    uneven = operation(Kind.all_to_all, source, target, detail="splits", **sizes)
    scene.start(uneven)
    assert [(call[0], call[1][1], call[2]) for call in scene.comm.calls] == [
        ("Irecv", 2, 0),
        ("Irecv", 1, 1),
        ("Isend", 4, 0),
        ("Isend", 1, 1),
    ]


async def test_uneven_parts_of_all_and_for_all_are_one_call() -> None:
    scene = Scene(rank=1)
    part, whole = np.arange(1, dtype=np.uint8), np.arange(4, dtype=np.uint8)
    scene.start(operation(Kind.all_gather, part, whole, target_sizes=[3, 1, 0]))
    scene.start(operation(Kind.reduce_scatter, whole, part, ReduceOp.MAX, source_sizes=[3, 1, 0]))
    assert [call[0] for call in scene.comm.calls] == ["Iallgatherv", "Ireduce_scatter"]
    assert scene.comm.calls[0][2][1] == [3, 1, 0]
    assert scene.comm.calls[1][3] == [3, 1, 0]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LARGEST", 4)


async def test_what_is_too_large_goes_in_pieces(tiny: None) -> None:
    scene = Scene()
    tensor = np.arange(10, dtype=np.uint8)
    scene.start(operation(Kind.all_reduce, tensor, tensor, ReduceOp.MAX))
    scene.start(operation(Kind.broadcast, tensor, tensor, root=0))
    pieces = [(tensor[start : start + 4].tobytes(), min(4, 10 - start), "UINT8_T") for start in (0, 4, 8)]
    assert scene.comm.calls == [
        *(("Iallreduce", "IN_PLACE", piece, "MAX") for piece in pieces),
        *(("Ibcast", piece, 0) for piece in pieces),
    ]


async def test_parts_that_are_too_large_together_are_messages_or_reductions(tiny: None) -> None:
    scene = Scene()
    part, whole = np.arange(2, dtype=np.uint8), np.arange(6, dtype=np.uint8)
    scene.start(operation(Kind.all_gather, part, whole))
    scene.start(operation(Kind.gather, part, whole, root=0))
    scene.start(operation(Kind.scatter, whole, part, root=0))
    scene.start(operation(Kind.all_to_all, whole, whole.copy()))
    assert {call[0] for call in scene.comm.calls} == {"Isend", "Irecv"}
    scene.comm.calls.clear()
    scene.start(operation(Kind.reduce_scatter, whole, part, ReduceOp.MAX))
    assert scene.comm.calls == [
        ("Ireduce", (whole[:2].tobytes(), 2, "UINT8_T"), (part.tobytes(), 2, "UINT8_T"), "MAX", 0),
        ("Ireduce", (whole[2:4].tobytes(), 2, "UINT8_T"), None, "MAX", 1),
        ("Ireduce", (whole[4:].tobytes(), 2, "UINT8_T"), None, "MAX", 2),
    ]


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
    quiet: list[str] = []
    scene.engine.abort(lambda: quiet.append("quiet"))
    await asyncio.sleep(0)
    assert quiet == []
    scene.thread.abandoned[0]()
    await asyncio.sleep(0)
    assert quiet == ["quiet"]


async def test_abort_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "GRACE", 0.0)
    scene = Scene()
    quiet = asyncio.Event()
    heard: list[str] = []
    scene.engine.abort(lambda: (heard.append("quiet"), quiet.set()))  # type: ignore[func-returns-value,arg-type]
    await quiet.wait()
    scene.thread.abandoned[0]()
    await asyncio.sleep(0)
    assert heard == ["quiet"], "once"


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
    quiet: list[str] = []
    scene.engine.abort(lambda: quiet.append("quiet"))
    scene.engine.close()
    assert quiet == ["quiet"]


def place(rank: int, size: int) -> bytes:
    return engine_module._PLACE.pack(rank, size)


def test_ranks_of_one_job_fit() -> None:
    assert MpiEngine.fits([place(2, 4), place(0, 4), place(3, 4)]) == ""


@pytest.mark.parametrize("told", [[place(0, 1), place(0, 1)], [place(0, 2), place(1, 3)]])
def test_ranks_of_several_jobs_do_not(told: list[bytes]) -> None:
    assert "start all 2 with one mpirun" in MpiEngine.fits(told)
