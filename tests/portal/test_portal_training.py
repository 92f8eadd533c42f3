"""The training classes of the portal: the bits of the async ones, and each call blocks.

Also the program of real ranks: `python test_portal_training.py NAME` runs the function NAME.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist import ddp, portal
from aiodist.portal import SyncProcessGroup
from aiodist.portal.loop_thread import Reply
from aiodist.testing.cluster import run_cluster
from aiodist.testing.outcome import check
from aiodist.testing.ranks import launch

COSTLY = "half a second of CPU, or more"  # written out: ranks run this file, and find no other tests

SHAPES = ((40, 7), (9,))
STEPS = 12
STREAMING = {"sync_every": 6, "fragments": 2, "delay": 1, "mix": 0.5, "codec": "int4"}


def values(*seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def ranks(program: Any, size: int, exits: dict[int, int] | None = None, *more: str) -> list[str]:
    """Run a function of this file on real processes; what each rank printed."""
    outcomes = asyncio.run(launch([__file__, program.__name__, *more], size, timeout=120))
    check(outcomes, exits or {})
    return [outcome.output for outcome in outcomes]


def bits(arrays: list[Any]) -> str:
    return b"".join(np.ascontiguousarray(one).tobytes() for one in arrays).hex()


# ── programs ─────────────────────────────────────────────────────────────────────────────────────────


def gradients() -> None:
    with portal.init_process_group() as pg:
        weights = values(pg.rank)
        sync = portal.GradientSync(pg, weights, codec="int8")
        for step in range(STEPS):
            for index, gradient in enumerate(values(pg.rank, step)):
                sync.ready(index, gradient)
            for weight, average in zip(weights, sync.finish(), strict=True):
                weight -= average
        print("bits", bits(weights))


def streaming() -> None:
    with portal.init_process_group() as pg:
        weights = values(pg.rank)
        diloco = portal.DiLoCo(pg, weights, **STREAMING)
        for step in range(STEPS):
            for weight, moved in zip(weights, values(pg.rank, step), strict=True):
                weight -= moved
            diloco.step()
        assert (diloco.steps, diloco.exchanges) == (STEPS, STEPS // 3 - 1)
        print("bits", bits(weights))


def falling(values: Any, gradient: Any, state: dict[str, Any]) -> None:
    velocity = state.setdefault("velocity", np.zeros_like(values))
    velocity *= np.float32(0.5)
    velocity += gradient
    values -= velocity


def sharded() -> None:
    with portal.init_process_group() as pg:
        weights = values(pg.rank)
        optimizer = portal.ShardedOptimizer(pg, weights, falling)
        for step in range(STEPS):
            optimizer.step(values(pg.rank, step))
        assert optimizer.steps == STEPS
        print("bits", bits(weights))


def checkpointed() -> None:
    """Saved and loaded with the portal's training objects; a save that Ctrl-C interrupts is whole."""
    folder = sys.argv[2]
    with portal.init_process_group() as pg:
        weights = values(pg.rank)
        optimizer = portal.ShardedOptimizer(pg, weights, falling)
        with portal.Checkpoints(pg, folder) as checkpoints:
            assert checkpoints.load(optimizer=optimizer) is None
            optimizer.step(values(pg.rank, 0))
            saving = checkpoints.save(1, optimizer=optimizer, weights=weights, note="x")
            assert saving is not None and saving.step == 1
            assert saving.wait().is_dir() and saving.done()
            kept = bits(weights)
            optimizer.step(values(pg.rank, 1))
            if pg.rank == 0:
                thread = interrupt_when_blocked(pg)
                with pytest.raises(KeyboardInterrupt):
                    checkpoints.save(2, optimizer=optimizer)
                thread.join()
                pg.send(np.zeros(1), 1)
            else:
                pg.recv(np.zeros(1), 0)
                checkpoints.save(2, optimizer=optimizer)
            optimizer.step(values(pg.rank, 2))
            after = bits(weights)
            last = checkpoints.save(3, note="y")
            assert last is not None and last.wait()
            assert checkpoints.steps() == [1, 2, 3]
            found = checkpoints.load(1, optimizer=optimizer)
            assert found is not None and found["note"] == "x" and bits(found["weights"]) == kept
            optimizer.synced()
            assert optimizer.steps == 1 and bits(weights) == kept
            for step in (1, 2):
                optimizer.step(values(pg.rank, step))
            assert bits(weights) == after
            with pytest.raises(dist.CheckpointError, match="no checkpoint of step 7"):
                checkpoints.load(7)
        print("bits", after)


def a_rank_dies() -> None:
    with portal.init_process_group() as pg:
        own = np.zeros(5, np.float32)
        local = portal.LocalSGD(pg, [own], sync_every=2, elastic=True)
        while local.steps < 8:
            own += 2
            if pg.rank == 1 and local.steps == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            local.step()
        assert isinstance(local.pg, SyncProcessGroup) and (local.pg.size, local.pg.epoch) == (2, 1)
        assert own.tolist() == [16.0] * 5
        print("end", local.pg.all_gather_object(pg.rank))


def interrupt_when_blocked(pg: SyncProcessGroup, beside: int = 0) -> threading.Thread:
    """Send this process SIGINT as soon as a step of a training object is waited for.

    Args:
        beside: others that were waited for, and go on.
    """

    def waits(reply: Reply) -> bool:
        return reply.task is not None and reply.waited_for

    signal.signal(signal.SIGINT, signal.default_int_handler)

    def watch() -> None:
        while sum(map(waits, list(pg.portal._replies))) <= beside:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def until_forgotten(pg: SyncProcessGroup) -> None:
    """A step that has ended is held no more, though nobody has waited for it."""
    ends = time.monotonic() + 60
    while pg.portal._steps._going_on:
        assert time.monotonic() < ends, "a step that has ended is held"
        os.sched_yield()


def interrupted_finish() -> None:
    """Rank 0 is interrupted in `finish` before rank 1 has its gradients, of groups that change and that do
    not. The step ends meanwhile, or not; the next call says how."""
    for elastic in (False, True):
        with portal.join() if elastic else portal.init_process_group() as pg:
            weights = np.zeros(5)
            sync = portal.GradientSync(pg, [weights], elastic=elastic)
            for step in range(4):
                if pg.rank == 1:
                    pg.recv(np.zeros(1), 0)
                sync.ready(0, np.full(5, 1.0 + pg.rank + 10 * step))
                if pg.rank == 1:
                    [average] = sync.finish()
                    pg.send(np.zeros(1), 0)
                else:
                    thread = interrupt_when_blocked(pg)
                    with pytest.raises(KeyboardInterrupt):
                        sync.finish()
                    thread.join()
                    pg.send(np.zeros(1), 1)
                    if step % 2:
                        pg.recv(np.zeros(1), 1)
                        until_forgotten(pg)
                        pg.drain()
                    with pytest.raises(dist.UsageError):
                        sync.ready(0, np.zeros(5))
                    [average] = sync.finish()
                    if not step % 2:
                        pg.recv(np.zeros(1), 1)
                weights += average
            assert weights.tolist() == [4 * 1.5 + 60.0] * 5


def interrupted_steps() -> None:
    """Rank 0 is interrupted in each second step before rank 1 begins it. What is written at all has been
    written when `drain` returns, before the next collective, and before the end. The update, which is a part
    of the step, reads the optimizer."""
    counts = []

    def update(values: Any, gradient: Any, state: dict[str, Any]) -> None:
        counts.append(one.steps)
        falling(values, gradient, state)

    size = 200_000  # more than the loop itself works on
    with portal.init_process_group() as pg:
        for kind in ("sharded", "diloco"):
            weights = np.zeros(size, np.float32)
            if kind == "sharded":
                one: Any = portal.ShardedOptimizer(pg, [weights], update)
            else:
                one = portal.DiLoCo(pg, [weights], sync_every=1, outer_lr=1.0, outer_momentum=0.0)
            for step in range(6):
                if kind == "diloco":
                    weights -= 1 + pg.rank
                given = [[np.full(size, 1.0 + pg.rank, np.float32)]] if kind == "sharded" else []
                if pg.rank == 1 and step % 2:
                    pg.recv(np.zeros(1), 0)
                if pg.rank == 0 and step % 2:
                    thread = interrupt_when_blocked(pg)
                    with pytest.raises(KeyboardInterrupt):
                        one.step(*given)
                    thread.join()
                    pg.send(np.zeros(1), 1)
                    if step == 3:
                        pg.drain()
                        after = weights.copy()
                        assert one.steps == 4
                    elif step == 5:
                        continue  # the end waits for it, too
                else:
                    one.step(*given)
                if step == 1:  # whichever comes first on rank 0, here it is the step
                    rows = pg.all_gather(np.full(2, 77.0 + pg.rank, np.float32))
                    assert rows.tolist() == [[77.0, 77.0], [78.0, 78.0]]
                if step != 3 or pg.rank:
                    after = weights.copy()
                expected, velocity = 0.0, 0.0
                for _ in range(step + 1):
                    velocity = 1.5 + (velocity / 2 if kind == "sharded" else 0)
                    expected -= velocity
                assert after.tolist() == [expected] * size, (kind, step, after[0], expected)
            if kind == "sharded":
                assert one.steps == 6 and counts == list(range(6))
                pg.barrier()
    assert weights.tolist() == [-9.0] * size


def interrupted_as_one_dies() -> None:
    """Rank 0 is interrupted in `finish`, and rank 1 dies in that step: what goes on is the way to the next
    epoch, and `drain` waits for that, too."""
    with portal.join() as pg:
        weights, me = np.zeros(5), pg.rank
        sync = portal.GradientSync(pg, [weights], elastic=True)
        sync.ready(0, np.full(5, 1.0 + me)) if me != 1 else pg.recv(np.zeros(1), 0)
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if me == 0:
            thread = interrupt_when_blocked(pg)
            with pytest.raises(KeyboardInterrupt):
                sync.finish()
            thread.join()
            pg.send(np.zeros(1), 1)
            pg.drain()
            assert (sync._made.pg.epoch, sync._made._synced) == (1, True)
        assert sync.finish() == []
        sync.ready(0, np.full(5, 3.0 + me))
        [average] = sync.finish()
        assert average.tolist() == [4.0] * 5


def interrupted_at_the_end() -> None:
    """Rank 0 is interrupted in a step, and again where the end waits for that: the group is aborted."""
    expected: Any = KeyboardInterrupt if dist.get_node_local_rank() == 0 else dist.GroupAborted
    with pytest.raises(expected), portal.init_process_group() as pg:
        one = portal.ShardedOptimizer(pg, [np.zeros(5, np.float32)], falling)
        if pg.rank == 0:
            thread = interrupt_when_blocked(pg)
            with pytest.raises(KeyboardInterrupt):
                one.step([np.ones(5, np.float32)])
            thread.join()
            interrupt_when_blocked(pg, 1)
        else:
            pg.recv(np.zeros(1), 0)
    for other in set(threading.enumerate()) - {threading.main_thread()}:
        other.join()


# ── tests ────────────────────────────────────────────────────────────────────────────────────────────


async def awaited(kind: str) -> list[str]:
    """The same trainings with the async classes."""

    async def part(pg: dist.ProcessGroup) -> str:
        weights = values(pg.rank)
        if kind == "streaming":
            diloco = await ddp.DiLoCo(pg, weights, **STREAMING)  # type: ignore[arg-type]
        elif kind == "sharded":
            optimizer = await ddp.ShardedOptimizer(pg, weights, falling)
        else:
            sync = await ddp.GradientSync(pg, weights, codec="int8")
        for step in range(STEPS):
            given = values(pg.rank, step)
            if kind == "sharded":
                await optimizer.step(given)
                continue
            if kind == "gradients":
                for index, gradient in enumerate(given):
                    sync.ready(index, gradient)
                given = await sync.finish()
            for weight, moved in zip(weights, given, strict=True):
                weight -= moved
            if kind == "streaming":
                await diloco.step()
        return bits(weights)

    return list(await run_cluster(2, part))


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("program", [gradients, streaming, sharded])
def test_the_bits_are_those_of_the_awaited_class(program: Any) -> None:
    expected = asyncio.run(awaited(program.__name__))
    assert [output.split()[-1] for output in ranks(program, 2)] == expected


@pytest.mark.slow(COSTLY)
def test_the_others_go_on_when_a_rank_dies() -> None:
    first, _, last = ranks(a_rank_dies, 3, {1: -9})
    assert "end [0, 2]" in first and "end [0, 2]" in last


@pytest.mark.slow(COSTLY)
def test_checkpoints_and_the_way_on_after_a_load(tmp_path: Path) -> None:
    first, second = ranks(checkpointed, 2, None, str(tmp_path / "checkpoints"))
    assert first.split()[-1] == second.split()[-1]


@pytest.mark.slow(COSTLY)
def test_after_ctrl_c_the_next_finish_says_how_the_step_ended() -> None:
    ranks(interrupted_finish, 2)


@pytest.mark.slow(COSTLY)
def test_after_ctrl_c_a_step_ends_before_anything_else_of_its_object() -> None:
    ranks(interrupted_steps, 2)


@pytest.mark.slow(COSTLY)
def test_after_ctrl_c_drain_waits_for_the_next_epoch() -> None:
    ranks(interrupted_as_one_dies, 3, {1: -9})


@pytest.mark.slow(COSTLY)
def test_ctrl_c_while_the_end_waits_for_a_step_aborts() -> None:
    ranks(interrupted_at_the_end, 2)


@pytest.mark.parametrize("codec", [None, "int8"])
def test_how_a_step_ended_is_given_back(codec: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C strikes when it has come, and its caller has not taken it."""

    get = Reply.get

    def interrupts(self: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return get(self)

    with portal.init_process_group("host", "env://") as pg:
        sync = portal.GradientSync(pg, [np.zeros(3)], codec=codec)
        for number in (1.0, 2.0):
            sync.ready(0, np.full(3, number))
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(Reply, "get", interrupts)
                sync.finish()
            with pytest.raises(dist.UsageError, match="may count, or not"):
                sync.ready(0, np.zeros(3))
            assert sync.finish()[0].tolist() == [number] * 3
        if codec is not None:
            sync.ready(0, np.full(3, np.nan))
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(Reply, "get", interrupts)
                sync.finish()
            with pytest.raises(dist.NonFiniteValues):
                sync.finish()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Reply, "get", interrupts)
            sync.finish()  # a mistake has ended no step
        sync.ready(0, np.ones(3))
        assert sync.finish()[0].tolist() == [1.0] * 3


@pytest.mark.parametrize("name", ["GradientSync", "DiLoCo", "LocalSGD", "ShardedOptimizer", "Checkpoints"])
def test_every_method_is_there(name: str) -> None:
    facade, original = getattr(portal, name), getattr(ddp, name)
    for method, function in inspect.getmembers(original, inspect.isfunction):
        if not method.startswith("_"):
            mirror = getattr(facade, method)
            assert not inspect.iscoroutinefunction(mirror) and inspect.getdoc(mirror)
            assert inspect.signature(mirror).parameters == inspect.signature(function).parameters


def test_what_is_refused() -> None:
    with portal.init_process_group("host", "env://") as pg:
        with pytest.raises(dist.UsageError, match=r"use dist.DiLoCo"):
            portal.DiLoCo(pg._group, [np.zeros(3)])

        with pytest.raises(dist.UsageError, match=r"use dist.Checkpoints"):
            portal.Checkpoints(pg._group, "checkpoints")
        wrong: Any = pg
        with pytest.raises(dist.UsageError, match=r"the class of that name in dist.portal"):
            pg.portal.call(dist.Checkpoints(wrong, "checkpoints").save, 1, weights=np.zeros(3))

        class OfTorch:
            ours = pg

        with pytest.raises(dist.UsageError, match="keeps its members"):
            portal.GradientSync(OfTorch(), [np.zeros(3)], elastic=True)
        sync = portal.GradientSync(OfTorch(), [np.zeros(3)])
        assert sync.pg is pg and "GradientSync" in repr(sync)
        with pytest.raises(dist.UsageError, match="are not ready"):
            sync.finish()
        with pytest.raises(AttributeError, match="nothing"):
            _ = sync.nothing
        with pytest.raises(AttributeError, match="_hidden"):
            _ = sync._hidden
        with pytest.raises(dist.UsageError, match="not a multiple"):
            portal.DiLoCo(pg, [np.zeros(3), np.zeros(2)], sync_every=3, fragments=2)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
