"""Checkpoints: whole or absent, at any number of ranks, without stopping the loop; failures are raised."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

import aiodist.ddp.checkpoint.checkpoints as module
from aiodist.base.errors import CheckpointError, GroupAborted, UsageError
from aiodist.ddp import Checkpoints, DiLoCo, PerRank, ShardedOptimizer
from aiodist.ddp.checkpoint import files
from aiodist.ddp.checkpoint.folder import finish, listed
from aiodist.group import ProcessGroup
from aiodist.testing.cluster import run_cluster
from aiodist.testing.spmd import spmd
from tests.levels import COSTLY

Shapes = list[tuple[tuple[int, ...], str]]


def on_all(size: int, part: Callable[[ProcessGroup], Awaitable[Any]]) -> list[Any]:
    return asyncio.run(run_cluster(size, part))


def adam(values: Any, gradient: Any, state: dict[str, Any]) -> None:
    state["count"] = state.get("count", 0) + 1
    mean = state.setdefault("mean", np.zeros_like(values))
    mean += (gradient - mean) * values.dtype.type(0.25)
    values -= mean * values.dtype.type(0.5 / state["count"])


def fresh(shapes: Shapes, rank: int = 0) -> list[Any]:
    return [np.full(shape, 1 + rank, dtype) for shape, dtype in shapes]


def gradients(shapes: Shapes, step: int) -> list[Any]:
    """The same on all ranks, so that any number of them has the same average."""
    return [
        ((np.arange(int(np.prod(shape))) % 7 + step + index) / 4).reshape(shape).astype(dtype)
        for index, (shape, dtype) in enumerate(shapes)
    ]


async def train(optimizer: ShardedOptimizer, shapes: Shapes, until: int) -> None:
    while optimizer.steps < until:
        await optimizer.step(gradients(shapes, optimizer.steps))


def straight(shapes: Shapes, until: int) -> list[bytes]:
    async def part(pg: ProcessGroup) -> list[bytes]:
        mine = fresh(shapes)
        await train(await ShardedOptimizer(pg, mine, adam), shapes, until)
        return [one.tobytes() for one in mine]

    found: list[bytes] = on_all(1, part)[0]
    return found


shapes_of = st.lists(
    st.tuples(
        st.lists(st.integers(0, 6), max_size=3).map(tuple), st.sampled_from(["float32", "float64", "float16"])
    ),
    min_size=1,
    max_size=4,
)


def test_the_library_safetensors_reads_a_checkpoint(tmp_path: Path) -> None:
    """What both ranks have written, put together, is the optimizer's arrays."""
    shapes: Shapes = [((5, 3), "float32"), ((7,), "float64")]

    async def part(pg: ProcessGroup) -> list[bytes]:
        mine = fresh(shapes)
        optimizer = await ShardedOptimizer(pg, mine, adam)
        await train(optimizer, shapes, 3)
        async with Checkpoints(pg, tmp_path) as checkpoints:
            await checkpoints.save(3, optimizer=optimizer)
        return [one.tobytes() for one in mine]

    values = on_all(2, part)[0]
    written = [
        bytes(tensor["data"])
        for path in sorted(tmp_path.glob("*/rank-*.safetensors"))
        for _, tensor in safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    ]
    assert len(list(tmp_path.glob("*/rank-*.safetensors"))) == 2
    for array in values:
        pieces = [piece for piece in written if piece and piece in array]
        assert b"".join(sorted(pieces, key=array.index)) == array


@pytest.mark.slow(COSTLY)
@settings(max_examples=15)
@given(shapes_of, st.integers(1, 5), st.integers(1, 5), st.integers(0, 1), st.booleans(), st.booleans())
def test_any_number_of_ranks_goes_on_from_what_another_number_saved(
    tmp_path_factory: Any, shapes: Shapes, size: int, other: int, copies: int, whole: bool, now_whole: bool
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")

    async def save(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, folder) as checkpoints:
            optimizer = await ShardedOptimizer(pg, fresh(shapes), adam, redundancy=copies, whole=whole)
            await train(optimizer, shapes, 3)
            assert await checkpoints.save(3, optimizer=optimizer, epoch=7)
            await train(optimizer, shapes, 4)  # what was saved is a copy

    async def load(pg: ProcessGroup) -> list[bytes]:
        async with Checkpoints(pg, folder) as checkpoints:
            mine = fresh(shapes, 5 + pg.rank)
            optimizer = ShardedOptimizer(pg, mine, adam, redundancy=1 - copies, whole=now_whole)
            found = await checkpoints.load(optimizer=optimizer)
            assert found is not None
            assert (found.step, found.size, found["epoch"]) == (3, size, 7)
            await optimizer
            assert optimizer.steps == 3
            await train(optimizer, shapes, 6)
            return [one.tobytes() for one in mine]

    on_all(size, save)
    assert on_all(other, load) == [straight(shapes, 6)] * other


@spmd(world_size=4)
async def saves(pg: ProcessGroup, folder: Path) -> None:
    shapes: Shapes = [((7, 5), "float32"), ((3,), "float64")]
    async with Checkpoints(pg, folder) as checkpoints:
        optimizer = await ShardedOptimizer(pg, fresh(shapes, pg.rank), adam)
        await train(optimizer, shapes, 4)
        assert await checkpoints.save(4, optimizer=optimizer)


async def loads(pg: ProcessGroup, folder: Path) -> None:
    shapes: Shapes = [((7, 5), "float32"), ((3,), "float64")]
    async with Checkpoints(pg, folder) as checkpoints:
        optimizer = ShardedOptimizer(pg, mine := fresh(shapes, 3), adam)
        assert await checkpoints.load(optimizer=optimizer)
        await optimizer
        await train(optimizer, shapes, 8)
        alone = await ShardedOptimizer(await pg.split(pg.rank), other := fresh(shapes), adam)  # type: ignore[arg-type]
        await train(alone, shapes, 8)
        assert [one.tobytes() for one in mine] == [one.tobytes() for one in other]


loads_at_3, loads_at_6 = spmd(world_size=3)(loads), spmd(world_size=6)(loads)


@pytest.mark.slow(COSTLY)
def test_saved_by_4_processes_loaded_by_3_and_by_6(tmp_path: Path) -> None:
    saves(folder=tmp_path)
    loads_at_3(folder=tmp_path)
    loads_at_6(folder=tmp_path)


class Gate:
    """The writing of files, which waits until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        real = files.write

        def write(path: Path, arrays: Any, stop: threading.Event) -> int:
            self.reached.set()
            while not self.opened.wait(0.01) and not stop.is_set():
                pass
            return real(path, arrays, stop)

        monkeypatch.setattr(module, "write", write)


def test_the_program_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            weights = np.arange(5.0)
            saving = await checkpoints.save(1, weights=weights)
            assert saving is not None and not saving.done() and saving.step == 1
            assert await checkpoints.steps() == []
            for _ in range(10):
                weights += await pg.all_reduce(np.ones(5))
            assert not saving.done()
            await pg.barrier()
            gate.opened.set()
            path = await saving
            assert (path / "index.json").is_file() and await checkpoints.steps() == [1]
            found = await checkpoints.load()
            assert found is not None and found["weights"].tolist() == [0, 1, 2, 3, 4]
            assert "weights" in found and "bias" not in found

    on_all(3, part)


def test_the_next_save_waits_for_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            first = await checkpoints.save(1, x=1)
            second = asyncio.create_task(checkpoints.save(2, x=2))
            await pg.barrier()
            assert first is not None and not first.done() and not second.done()
            gate.opened.set()
            assert await second is not None and first.done()

    on_all(2, part)


def test_the_next_save_may_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path, when_busy="skip") as checkpoints:
            first = await checkpoints.save(1, x=1)
            assert await checkpoints.save(2, x=2) is None
            gate.opened.set()
            assert first is not None and await first
            await pg.barrier()
            third = await checkpoints.save(3, x=3)
            assert third is not None and await third
            assert await checkpoints.steps() == [1, 3]

    on_all(2, part)


async def loaded(checkpoints: Checkpoints, step: int | None) -> tuple[int, list[float]]:
    found = await checkpoints.load(step)
    assert found is not None
    return found.step, found["w"].tolist()


def test_a_save_copies_when_the_save_before_it_has_copied(tmp_path: Path) -> None:
    """The second of two saves took the memory of the first one's copies: one had the other's values."""
    copying, go, entered = threading.Event(), threading.Event(), []

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            real = checkpoints._copied

            def slow(trees: Any) -> Any:
                entered.append(trees["w"][0])
                copying.set()
                go.wait(60)
                return real(trees)

            checkpoints._copied = slow  # type: ignore[method-assign]
            saves = [
                asyncio.ensure_future(checkpoints.save(step, w=np.arange(3.0) + step)) for step in (1, 2)
            ]
            await asyncio.to_thread(copying.wait, 60)
            for _ in range(100):
                await asyncio.to_thread(int)
            assert entered == [1.0], "the second one waits"
            go.set()
            await asyncio.gather(*[await save for save in saves])  # type: ignore[arg-type]
            assert await checkpoints.steps() == [1, 2]
            assert [await loaded(checkpoints, step) for step in (1, 2)] == [(1, [1, 2, 3]), (2, [2, 3, 4])]

    on_all(1, part)


def test_saves_and_loads_at_once_are_carried_out_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            for turn in range(3, 15, 3):
                made = [np.arange(5.0) * step for step in range(turn, turn + 3)]
                saving = await asyncio.gather(
                    *(checkpoints.save(turn + at, w=one, own=PerRank(pg.rank)) for at, one in enumerate(made))
                )
                await asyncio.gather(*saving)  # type: ignore[arg-type]
                assert (await checkpoints.steps())[-3:] == [turn, turn + 1, turn + 2]
                asked = [turn + 1, None, turn, turn + 2, turn + 1]
                found = await asyncio.gather(*(loaded(checkpoints, one) for one in asked))
                wanted = [turn + 2 if one is None else one for one in asked]
                assert found == [(step, (np.arange(5.0) * step).tolist()) for step in wanted]

    on_all(3, part)


def test_what_one_rank_cancels_before_its_turn_is_carried_out_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others count on it: their calls met the next ones of that rank, and the group broke."""
    gate = Gate(monkeypatch)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            saves = [asyncio.ensure_future(checkpoints.save(step, w=np.ones(3) * step)) for step in (1, 2, 3)]
            load = asyncio.ensure_future(checkpoints.load(2))
            assert await saves[0] is not None
            if pg.rank == 1:
                saves[1].cancel()
                load.cancel()
            await pg.barrier()
            assert not saves[1].done() and not load.done(), "they go on to their end"
            gate.opened.set()
        assert saves[2].done(), "it is left when those before it have been"
        await asyncio.wait([*saves, load])
        cancelled = [one.cancelled() for one in (*saves, load)]
        assert cancelled == [False, pg.rank == 1, False, pg.rank == 1]
        assert pg.rank == 1 or load.result() is not None
        assert await checkpoints.steps() == [1, 2, 3]
        assert [await loaded(checkpoints, step) for step in (2, 3)] == [(2, [2, 2, 2]), (3, [3, 3, 3])]

    on_all(2, part)


def test_leaving_comes_behind_a_save_that_was_called_in_the_same_step(tmp_path: Path) -> None:
    async def part(pg: ProcessGroup) -> None:
        checkpoints = Checkpoints(pg, tmp_path)
        save = asyncio.ensure_future(checkpoints.save(1, w=np.ones(3)))
        leave = asyncio.ensure_future(checkpoints.aclose())
        await leave
        assert save.done() and await checkpoints.steps() == [1]
        await save

    on_all(2, part)


def test_of_two_saves_at_once_the_second_may_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path, when_busy="skip") as checkpoints:
            saves = await asyncio.gather(*(checkpoints.save(step, w=step) for step in (1, 2)))
            assert saves[0] is not None and saves[1] is None
            await pg.barrier()
            gate.opened.set()

    on_all(2, part)


def test_a_load_that_is_cancelled_gives_nothing_its_values_afterwards(tmp_path: Path) -> None:
    """The thread that loads cannot be stopped: a later load had its values replaced by those of the first."""
    loading, go = threading.Event(), threading.Event()

    class Model:
        values = 0.0

        def load_state_dict(self, saved: Any) -> None:
            if saved["w"] == 1:
                loading.set()
                go.wait(60)
            self.values = saved["w"]

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            for step in (1, 2):
                await (await checkpoints.save(step, model={"w": step}))  # type: ignore[misc]
            model = Model()
            first = asyncio.ensure_future(checkpoints.load(1, model=model))
            await asyncio.to_thread(loading.wait, 60)
            first.cancel()
            second = asyncio.ensure_future(checkpoints.load(2, model=model))
            for _ in range(100):
                await asyncio.to_thread(int)
            go.set()
            await asyncio.wait([first, second])
            assert first.cancelled() and second.result() is not None and model.values == 2

    on_all(1, part)


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path, keep=2) as checkpoints:
            for step in (5, 7, 7, 3):
                saving = await checkpoints.save(step, x=np.arange(step))
                assert saving is not None
                await saving
            await pg.barrier()
            assert await checkpoints.steps() == [7, 3], "in the order in which they were written"
            for asked, wanted in ((None, 3), (7, 7)):
                found = await checkpoints.load(asked)
                assert found is not None and found.step == wanted and len(found["x"]) == wanted

    on_all(2, part)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["000003-step-7", "000004-step-3"]


def test_a_checkpoint_without_its_index_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(path: Path, step: int, parts: Any) -> None:
        assert len(list(path.iterdir())) == 3
        raise OSError("no space left")

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            assert await checkpoints.load() is None
            saving = await checkpoints.save(1, x=1)
            assert saving is not None
            await saving
            await pg.barrier()
            with monkeypatch.context() as patch:
                if pg.rank == 0:  # all ranks are in this process
                    patch.setattr(module, "_end", end)
                saving = await checkpoints.save(2, x=2)
                with pytest.raises(CheckpointError, match="of step 2 was not written: no space left"):
                    await saving  # type: ignore[misc]
                await pg.barrier()
            found = await checkpoints.load()
            assert found is not None and found["x"] == 1
            with pytest.raises(CheckpointError, match="has no checkpoint of step 2"):
                await checkpoints.load(2)
            saving = await checkpoints.save(3, x=3)
            assert saving is not None
            await saving
            await pg.barrier()
            assert await checkpoints.steps() == [1, 3]

    on_all(3, part)
    left = sorted(one.name for one in tmp_path.iterdir())
    assert left == ["000001-step-1", "000003-step-3"], "what was never finished is removed"


def test_what_a_step_changes_while_it_is_copied_is_not_saved(tmp_path: Path) -> None:
    """Half of it would be of one step, and half of another."""
    copying, go = threading.Event(), threading.Event()

    async def part(pg: ProcessGroup) -> None:
        optimizer = await ShardedOptimizer(pg, fresh([((4,), "float64")]), adam)
        async with Checkpoints(pg, tmp_path) as checkpoints:
            real = checkpoints._copied

            def slow(trees: Any) -> Any:
                copying.set()
                go.wait(60)
                return real(trees)

            checkpoints._copied = slow  # type: ignore[method-assign]
            saving = asyncio.ensure_future(checkpoints.save(0, optimizer=optimizer))
            await asyncio.to_thread(copying.wait, 60)
            await train(optimizer, [((4,), "float64")], 1)
            go.set()
            with pytest.raises(CheckpointError, match="optimizer was changed by a step while it was copied"):
                await (await saving)  # type: ignore[misc]
            await (await checkpoints.save(1, optimizer=optimizer))  # type: ignore[misc]
            assert await checkpoints.steps() == [1]

    on_all(1, part)


@pytest.mark.parametrize("where", ["await", "save", "close"])
def test_a_failed_write_is_raised_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    real = files.write

    def write(path: Path, arrays: Any, stop: threading.Event) -> int:
        if path.name == "rank-00001.safetensors" and "step-2" in str(path):
            raise OSError(28, "No space left on device")
        return real(path, arrays, stop)

    monkeypatch.setattr(module, "write", write)
    match = r"of step 2 was not written: rank 1 could not write: .*No space left"

    async def part(pg: ProcessGroup) -> None:
        checkpoints = Checkpoints(pg, tmp_path)
        await checkpoints.save(1, x=np.ones(3))
        saving = await checkpoints.save(2, x=np.ones(3))
        if where == "await":
            with pytest.raises(CheckpointError, match=match):
                await saving  # type: ignore[misc]
        if where == "save":
            with pytest.raises(CheckpointError, match=match):
                await checkpoints.save(3, x=np.ones(3))
        if where == "close":
            with pytest.raises(CheckpointError, match=match):
                await checkpoints.aclose()
        else:
            assert await checkpoints.save(3, x=np.ones(3))
        await checkpoints.aclose()
        await pg.barrier()
        assert await checkpoints.steps() == ([1] if where == "close" else [1, 3])

    on_all(2, part)


def test_a_part_that_lies_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, arrays: Any, stop: threading.Event) -> int:
        elsewhere = tmp_path / path.name if path.name == "rank-00001.safetensors" else path
        return files.write(elsewhere, arrays, stop)

    monkeypatch.setattr(module, "write", write)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path / "own") as checkpoints:
            saving = await checkpoints.save(1, x=np.ones(3))
            with pytest.raises(
                CheckpointError, match=r"rank 0 does not see .*-00001.*Pass a folder that all"
            ):
                await saving  # type: ignore[misc]
            assert await checkpoints.steps() == []

    on_all(2, part)


def test_a_cancelled_program_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            await checkpoints.save(1, x=np.ones(3))
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(run_cluster(2, part))
        await asyncio.to_thread(gate.reached.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not list(tmp_path.glob("*/*")), "neither files nor an index"

    asyncio.run(main())


@pytest.mark.parametrize("held", [0, 1])
def test_pieces_of_an_array_that_differ_in_their_state_are_told(tmp_path: Path, held: int) -> None:
    """A rule that makes its entry where there is a gradient at last."""

    def rule(values: Any, gradient: Any, state: dict[str, Any]) -> None:
        if gradient.any():
            state.setdefault("velocity", np.zeros_like(values))
        values -= gradient

    async def part(pg: ProcessGroup) -> None:
        optimizer = await ShardedOptimizer(pg, [np.zeros(8)], rule, redundancy=1)
        await optimizer.step([(np.arange(8) // 4 == held).astype(float)])
        checkpoints = Checkpoints(pg, tmp_path)
        saving = await checkpoints.save(1, optimizer=optimizer)
        message = r"optimizer\.arrays\.0\.elements\.velocity is not the same.*Make each entry when a piece is"
        with pytest.raises(CheckpointError, match=message):
            await saving  # type: ignore[misc]
        await optimizer.step([np.ones(8)])
        await (await checkpoints.save(2, optimizer=optimizer))  # type: ignore[misc]
        await checkpoints.aclose()

    on_all(2, part)


def test_ranks_that_differ_are_told(tmp_path: Path) -> None:
    async def part(pg: ProcessGroup) -> None:
        checkpoints = Checkpoints(pg, tmp_path)
        weights = np.arange(6.0)
        if pg.rank == 1:
            weights[4] += 1e-9
        saving = await checkpoints.save(1, model={"w": [weights]})
        with pytest.raises(CheckpointError, match=r"model\.w\.0 is not the same on all ranks. Pass PerRank"):
            await saving  # type: ignore[misc]
        with pytest.raises(UsageError, match="rank 1 saves step 2, and rank 0 step 1"):
            await checkpoints.save(1 + pg.rank, x=1)
        with pytest.raises(UsageError, match="saves other things"):
            await checkpoints.save(1, **{f"x{pg.rank}": 1})
        saving = await checkpoints.save(2, model=PerRank(weights))
        assert saving is not None
        await saving
        found = await checkpoints.load()
        assert found is not None and found["model"].tobytes() == weights.tobytes()
        await checkpoints.aclose()

    on_all(2, part)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((1, 1, 2), "rank 2 loads step 2, and rank 0 step 1"),
        ((None, 1, None), "rank 1 loads step 1, and rank 0 the last one"),
        ((10**30, None, 1), f"rank 1 loads the last one, and rank 0 step {10**30}"),
    ],
)
def test_ranks_that_load_other_steps_are_told(
    tmp_path: Path, asked: tuple[int | None, ...], message: str
) -> None:
    """All of them got the one that rank 0 had asked for."""

    async def part(pg: ProcessGroup) -> list[int]:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            for step in (1, 2):
                await checkpoints.save(step, x=step)
            with pytest.raises(UsageError, match=message):
                await checkpoints.load(asked[pg.rank])
            found = await checkpoints.load(np.int64(1) if pg.rank else 1)  # type: ignore[arg-type]
            assert found is not None
            return [found.step, found["x"]]

    assert on_all(3, part) == [[1, 1]] * 3


def test_checkpoints_of_one_name_in_other_folders_are_not_loaded_as_one(tmp_path: Path) -> None:
    """As hosts have them whose folder is not shared, and which were tried alone before."""

    async def alone(pg: ProcessGroup, folder: str) -> None:
        async with Checkpoints(pg, tmp_path / folder) as checkpoints:
            await checkpoints.save(7, weights=np.full(3, float(len(folder))), folder="any")

    for folder in ("a", "bb"):
        on_all(1, partial(alone, folder=folder))

    async def part(pg: ProcessGroup) -> float:
        async with Checkpoints(pg, tmp_path / ("bb" if pg.rank == 1 else "a")) as checkpoints:
            with pytest.raises(
                CheckpointError, match=r"is another checkpoint on rank 1 than on rank 0\. Pass a"
            ):
                await checkpoints.load()
        async with Checkpoints(pg, tmp_path / "bb") as checkpoints:
            found = await checkpoints.load(7)
            assert found is not None
            return float(found["weights"][0])

    assert on_all(3, part) == [2.0] * 3


def test_what_has_no_meaning_is_refused(tmp_path: Path) -> None:
    async def part(pg: ProcessGroup) -> None:
        for more, match in [
            ({"keep": 0}, "keep must be at least 1"),
            ({"when_busy": "no"}, "when_busy must be"),
        ]:
            with pytest.raises(UsageError, match=match):
                Checkpoints(pg, tmp_path, **more)  # type: ignore[arg-type]
        checkpoints = Checkpoints(pg, tmp_path)
        issued = pg.issued_count()
        with pytest.raises(UsageError, match="step must be at least 0"):
            await checkpoints.save(-1, x=1)
        with pytest.raises(UsageError, match="nothing to save"):
            await checkpoints.save(1)
        with pytest.raises(UsageError, match="x is an object of type object, which cannot be saved"):
            await checkpoints.save(1, x=object())
        assert pg.issued_count() == issued
        saving = await checkpoints.save(1, x=1)
        assert saving is not None
        await saving
        with pytest.raises(CheckpointError, match="has no 'y'; it has x"):
            await checkpoints.load(y=None)
        with pytest.raises(CheckpointError, match=r"x has no load_state_dict. Leave it out"):
            await checkpoints.load(x=3)
        found = await checkpoints.load()
        assert found is not None
        with pytest.raises(CheckpointError, match="has no 'y'; it has x"):
            found["y"]
        await checkpoints.aclose()

    on_all(2, part)


def test_another_model_is_refused(tmp_path: Path) -> None:
    shapes: Shapes = [((4, 3), "float32"), ((5,), "float64")]

    def other_rule(values: Any, gradient: Any, state: dict[str, Any]) -> None:
        raise AssertionError

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            optimizer = await ShardedOptimizer(pg, fresh(shapes), adam)
            await train(optimizer, shapes, 1)
            saving = await checkpoints.save(1, optimizer=optimizer)
            assert saving is not None
            await saving
            for others, rule, match in [
                (
                    [((3, 4), "float32"), shapes[1]],
                    adam,
                    r"array 0 is float32\[4, 3\].*here float32\[3, 4\]",
                ),
                ([shapes[0], ((5,), "float32")], adam, r"array 1 is float64\[5\].*here float32\[5\]"),
                (shapes[:1], adam, "has 2 trained arrays, and here are 1"),
                ([*shapes, ((2,), "float32")], adam, "has 2 trained arrays, and here are 3"),
                (shapes, other_rule, "is of adam, and the optimizer here is .*other_rule"),
            ]:
                unlike = ShardedOptimizer(pg, fresh(others), rule)
                with pytest.raises(CheckpointError, match=match):
                    await checkpoints.load(optimizer=unlike)
                await unlike  # nothing was loaded
                assert unlike.steps == 0

    on_all(2, part)


def test_damage_is_told_to_all_and_an_older_one_is_there(tmp_path: Path) -> None:
    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            for step in (1, 2):
                saving = await checkpoints.save(step, x=PerRank(np.arange(4.0) + pg.rank), y=np.arange(step))
                assert saving is not None
                await saving
            await pg.barrier()
            if pg.rank == 0:
                path = tmp_path / "000002-step-2" / "rank-00001.safetensors"
                data = bytearray(path.read_bytes())
                data[-3] ^= 8
                path.write_bytes(data)
            await pg.barrier()
            with pytest.raises(CheckpointError, match=r"rank-00001.safetensors is damaged.*load\(step\)"):
                await checkpoints.load()
            found = await checkpoints.load(1)
            assert found is not None and found["x"][0] == pg.rank
            if pg.rank == 0:
                index = tmp_path / "000001-step-1" / "index.json"
                index.write_text(json.dumps(json.loads(index.read_text()) | {"format": 99}))
            await pg.barrier()
            with pytest.raises(CheckpointError, match="has the format 99, this version reads 1"):
                await checkpoints.load(1)

    on_all(2, part)


def test_torch_modules_and_diloco(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            torch.manual_seed(3)
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            arrays = [p.detach().numpy() for p in model.parameters()]
            diloco = await DiLoCo(pg, arrays, sync_every=2, codec="int8")
            for step in range(3):
                arrays[0] += 0.25 * (pg.rank + step)
                await diloco.step()
            arrays[0][...] = 0  # what is its own on each rank is saved as such, or not at all
            state = diloco.state_dict()
            state["feedback"] = PerRank(state["feedback"])
            saving = await checkpoints.save(3, model=model, optimizer=optimizer, diloco=state)
            assert saving is not None
            await saving
            other = torch.nn.Linear(4, 2)
            again = torch.optim.AdamW(other.parameters())
            found = await checkpoints.load(model=other, optimizer=again)
            assert found is not None
            assert torch.equal(other.weight, model.weight) and torch.equal(other.bias, model.bias)
            assert again.state_dict()["state"].keys() == {0, 1}
            resumed = DiLoCo(pg, [one.copy() for one in arrays], sync_every=2, codec="int8")
            resumed.load_state_dict(found["diloco"])
            await resumed
            assert resumed.steps == 3 and resumed._commons[0].digest == diloco._commons[0].digest
            with pytest.raises(CheckpointError, match=r"model in .* is of another model: .*size mismatch"):
                await checkpoints.load(model=torch.nn.Linear(4, 3))

    async def by_others(pg: ProcessGroup) -> None:
        """A group of another size has the common values, and nothing that rounding has left out."""
        arrays = [np.zeros((2, 4), np.float32), np.zeros(2, np.float32)]
        async with Checkpoints(pg, tmp_path) as checkpoints:
            resumed = DiLoCo(pg, arrays, sync_every=2, codec="int8")
            await checkpoints.load(diloco=resumed)
            await resumed
            assert resumed.steps == 3 and resumed._commons[0].values.any()
            assert [one.error for one in resumed._feedback] == [None]

    on_all(2, part)
    for size in (1, 3):
        on_all(size, by_others)


def test_a_folder_that_cannot_be_listed_is_told_to_all(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 300)  # no system takes such a name

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, root) as checkpoints:
            with pytest.raises(CheckpointError, match=r"rank 0 could not list .*name too long"):
                await checkpoints.load()
            match = "cannot be listed: .*name too long" if pg.rank == 0 else "rank 0 could not list"
            with pytest.raises(CheckpointError, match=match):
                await checkpoints.save(1, x=1)

    on_all(3, part)


class Moody:
    """Something that can be saved, and fails to load on one rank."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def state_dict(self) -> dict[str, Any]:
        return {"a": 1}

    def load_state_dict(self, saved: Any) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "error", [AttributeError("a"), MemoryError(), IndexError("i"), AssertionError("x"), OSError(5, "io")]
)
def test_whatever_loading_raises_on_one_rank_is_told_to_all(tmp_path: Path, error: Exception) -> None:
    async def part(pg: ProcessGroup) -> None:
        thing = Moody(error if pg.rank == 1 else None)
        async with Checkpoints(pg, tmp_path) as checkpoints:
            await (await checkpoints.save(1, thing=thing))  # type: ignore[misc]
            match = "thing in .* is of another model" if pg.rank == 1 else "rank 1 could not load: thing in"
            with pytest.raises(CheckpointError, match=match):
                await checkpoints.load(thing=thing)

    on_all(2, part)


def test_a_copy_that_fails_on_one_rank_is_told_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Checkpoints._copied

    def copied(self: Checkpoints, trees: Any) -> Any:
        if self._first.rank == 1:
            raise MemoryError
        return real(self, trees)

    monkeypatch.setattr(Checkpoints, "_copied", copied)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            saving = await checkpoints.save(1, x=1)
            with pytest.raises(CheckpointError, match="rank 1 could not write: MemoryError"):
                await saving  # type: ignore[misc]

    on_all(2, part)


def test_a_step_that_does_not_fit_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            issued = pg.issued_count()
            with pytest.raises(UsageError, match=r"below 2\*\*63"):
                await checkpoints.save(1 << 63, x=1)
            assert pg.issued_count() == issued
            await (await checkpoints.save((1 << 63) - 1, x=1))  # type: ignore[misc]
            found = await checkpoints.load()
            assert found is not None and found.step == (1 << 63) - 1

    on_all(2, part)


def test_what_only_has_the_name_of_a_checkpoint_is_let_be(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "c", tmp_path / "elsewhere"
    (root / ("9" * 25 + "-step-1")).mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "index.json").write_text("{}")
    (root / "000001-step-1").symlink_to(elsewhere)
    (root / "000002-step-1").write_text("a file")
    (root / "000003-step-1").mkdir()

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, root, keep=1) as checkpoints:
            for step in (5, 6):
                await (await checkpoints.save(step, x=1))  # type: ignore[misc]
                await pg.barrier()
            assert await checkpoints.steps() == [6]

    on_all(2, part)
    assert sorted(one.name for one in root.iterdir()) == [
        "000001-step-1", "000002-step-1", "000005-step-6", "9" * 25 + "-step-1",
    ]  # fmt: skip
    assert (elsewhere / "index.json").is_file()


def test_an_old_checkpoint_that_cannot_be_removed_holds_up_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.rmtree

    def rmtree(name: str, *, dir_fd: int) -> None:
        if "000001-step-1" in name and (tmp_path / name).exists():
            raise PermissionError(13, "Permission denied")
        real(name, dir_fd=dir_fd)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path, keep=3) as checkpoints:
            for step in (1, 2, 3):
                await (await checkpoints.save(step, x=1))  # type: ignore[misc]
        await pg.barrier()
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", rmtree)
            async with Checkpoints(pg, tmp_path, keep=1) as checkpoints:
                await (await checkpoints.save(4, x=1))  # type: ignore[misc]
            await pg.barrier()

    on_all(1, part)
    assert sorted(one.name for one in tmp_path.iterdir()) == [".000001-step-1.gone", "000004-step-4"]

    async def again(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path, keep=1) as checkpoints:
            assert await checkpoints.steps() == [4]
            await (await checkpoints.save(5, x=1))  # type: ignore[misc]

    on_all(1, again)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["000005-step-5"]


def test_a_whole_array_is_compared_with_its_own_checksum(tmp_path: Path) -> None:
    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            path = await (await checkpoints.save(1, x=np.arange(6.0)))  # type: ignore[misc]
            index = json.loads((path / "index.json").read_text())
            index["tree"][1][0][1][4] ^= 1
            plain = {key: index[key] for key in ("step", "files", "sizes", "tree")}
            (path / "index.json").unlink()
            finish(path, plain)
            with pytest.raises(CheckpointError, match="an array has another checksum"):
                await checkpoints.load()

    on_all(1, part)


@pytest.mark.parametrize("before", [0, 1])
def test_an_exception_on_one_rank_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    opened = threading.Event()
    real = files.write

    def write(path: Path, arrays: Any, stop: threading.Event) -> int:
        while path.name == "rank-00001.safetensors" and "step-2" in str(path) and not stop.is_set():
            opened.wait(0.01)
        return real(path, arrays, stop)

    monkeypatch.setattr(module, "write", write)

    async def part(pg: ProcessGroup) -> None:
        try:
            async with Checkpoints(pg, tmp_path) as checkpoints:
                for step in range(before):  # without one the writers' group is new
                    await (await checkpoints.save(step, x=1))  # type: ignore[misc]
                saving = await checkpoints.save(2, x=2)
                if pg.rank == 1:
                    raise LookupError("of the program")
                with pytest.raises(GroupAborted, match="has left its Checkpoints"):
                    await saving  # type: ignore[misc]
        except LookupError:
            assert pg.rank == 1
        await pg.barrier()  # the program's own group goes on
        async with Checkpoints(pg, tmp_path) as checkpoints:
            assert await checkpoints.steps() == [0][:before]
            await (await checkpoints.save(3, x=3))  # type: ignore[misc]
            await pg.barrier()
            assert await checkpoints.steps() == [*[0][:before], 3]

    on_all(3, part)


def test_a_save_that_begins_when_its_checkpoints_are_left_is_not_taken(tmp_path: Path) -> None:
    """It goes on where its caller was interrupted; no group is left open, and the other rank is told."""

    async def part(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            checkpoints = Checkpoints(pg, tmp_path)
            await pg.barrier()
            saving = await checkpoints.save(1, weights=np.arange(3.0))
            assert saving is not None
            with pytest.raises(GroupAborted, match="left its Checkpoints by an exception"):
                await saving
        else:
            with pytest.raises(KeyError, match="mine"):
                async with Checkpoints(pg, tmp_path) as checkpoints:
                    save = asyncio.create_task(checkpoints.save(1, weights=np.arange(3.0)))
                    await asyncio.sleep(0)  # it waits for the other rank
                    raise KeyError("mine")
            await pg.barrier()
            with pytest.raises(CheckpointError, match="step 1 was not taken: its Checkpoints was left"):
                await save
        assert pg.rank or checkpoints._group is None
        await pg.barrier()

    on_all(2, part)
    assert [one for one in listed(tmp_path) if one.whole] == []


def test_an_await_that_gave_up_was_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    def end(path: Path, step: int, parts: Any) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(module, "_end", end)

    async def part(pg: ProcessGroup) -> None:
        checkpoints = Checkpoints(pg, tmp_path)
        saving = await checkpoints.save(1, x=1)
        assert saving is not None
        awaiting = asyncio.ensure_future(asyncio.wait_for(saving, 60))
        await pg.barrier()
        awaiting.cancel()  # as `wait_for` does it with what it awaits
        with pytest.raises(asyncio.CancelledError):
            await awaiting
        gate.opened.set()
        with pytest.raises(CheckpointError, match="no space"):
            await checkpoints.aclose()

    on_all(2, part)


def test_loading_the_last_one_goes_on_with_a_later_one_when_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module._read
    removed: list[Path] = []

    def read(path: Path, rank: int, *more: Any) -> Any:
        if path.name == "000001-step-1" and rank == 1:
            (tmp_path / "later").rename(tmp_path / "000002-step-2")
            shutil.rmtree(path)
            removed.append(path)
        return real(path, rank, *more)

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            for step in (1, 2):
                await (await checkpoints.save(step, x=step))  # type: ignore[misc]
            await pg.barrier()
            if pg.rank == 0:
                (tmp_path / "000002-step-2").rename(tmp_path / "later")
                monkeypatch.setattr(module, "_read", read)
            await pg.barrier()
            found = await checkpoints.load()
            assert found is not None and found.step == 2 and found["x"] == 2
            await pg.barrier()
            assert len(removed) == 1
            with pytest.raises(CheckpointError, match="has no checkpoint of step 1"):
                await checkpoints.load(1)

    on_all(2, part)


def test_as_deep_as_is_allowed_is_saved_and_loaded(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(44):
        deep = {"a": deep}

    async def part(pg: ProcessGroup) -> None:
        async with Checkpoints(pg, tmp_path) as checkpoints:
            own = PerRank(deep)
            await (await checkpoints.save(1, deep={"a": deep}, own=own))  # type: ignore[misc]
            found = await checkpoints.load()
            assert found is not None and found["deep"] == {"a": deep} and found["own"] == deep
            issued = pg.issued_count()
            with pytest.raises(UsageError, match="has more than 45 levels"):
                await checkpoints.save(2, deep={"a": {"a": deep}})
            assert pg.issued_count() == issued

    on_all(2, part)
