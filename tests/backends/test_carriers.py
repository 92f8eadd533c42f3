"""One group, several backends: each tensor goes where it lies, all else to the host engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.base import CAPABILITIES
from aiodist.backends.carriers import Carriers
from aiodist.backends.foreign import ForeignBackend
from aiodist.backends.host.local import board
from aiodist.base.types import Call, Kind
from aiodist.group import ProcessGroup
from aiodist.testing import check_backend, run_cluster
from aiodist.transport import SocketEndpoint
from tests.backends.foreign.device_box import DeviceBox, OnDevice
from tests.backends.foreign.postbox import PostboxEngine
from tests.helpers import core_of, host_of
from tests.levels import COSTLY, few

for made in (PostboxEngine, DeviceBox):
    dist.register_backend(made.name, made)

BOTH = "cpu:postbox,cuda:device-box"


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has a CUDA device, as far as plans are concerned."""
    monkeypatch.setattr("aiodist.backends.cuda.library.choose_device", lambda *_: 0)


@pytest.mark.parametrize("backend", few([BOTH, "cpu:host,cuda:device-box"], [BOTH]))
async def test_tensors_go_by_their_place_and_keep_their_order(backend: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        assert pg.backend == backend
        for _ in range(3):
            there = OnDevice(np.arange(12.0)[::2] + pg.rank)
            here = np.arange(5) * (pg.rank + 1)
            works = [
                pg.all_reduce(there, async_op=True),
                pg.all_reduce(here, async_op=True),
                pg.barrier(async_op=True),
                pg.all_gather_object(pg.rank, async_op=True),
            ]
            assert [work.seq - works[0].seq for work in works] == [0, 1, 2, 3]
            results = await asyncio.gather(*works)
            assert results[0] is there
            assert np.array_equal(there.values, np.arange(12.0)[::2] * 3 + 3)
            assert np.array_equal(here, np.arange(5) * 6)
            assert results[3] == [0, 1, 2]
        await check_backend(pg, length=30)

    await run_cluster(3, main, backend=backend)


async def test_all_collectives_and_messages_on_devices() -> None:
    async def main(pg: ProcessGroup) -> None:
        me, size = pg.rank, pg.size
        mine = OnDevice(np.arange(4) + 10 * me)
        rows = OnDevice(np.zeros((size, 4), np.int64))
        await pg.all_gather(mine, rows)
        assert np.array_equal(rows.values, np.arange(4) + 10 * np.arange(size)[:, None])
        part = OnDevice(np.zeros((1, 4)))
        await pg.reduce_scatter(OnDevice(np.arange(4.0 * size).reshape(size, 4) * (me + 1)), part)
        assert np.array_equal(part.values[0], (np.arange(4.0) + 4 * me) * sum(range(1, size + 1)))
        mean = OnDevice(np.array([3.0 * me, 6.0]))
        await pg.all_reduce(mean, dist.ReduceOp.AVG)
        assert mean.values.tolist() == [3.0, 6.0]
        right, left = (me + 1) % size, (me - 1) % size
        sent = pg.send(OnDevice(np.arange(20)[::2] + me), right, async_op=True)
        into = OnDevice(np.zeros(20, np.int64)[1::2])
        assert await pg.recv(into, left) == left
        await sent
        assert np.array_equal(into.values, np.arange(20)[::2] + left)

    await run_cluster(3, main, backend=BOTH)


@pytest.mark.parametrize("backend", [BOTH, "cpu:host,cuda:device-box"])
async def test_messages_of_one_tag_are_in_order_in_each_place(backend: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            sent = [
                pg.send(OnDevice(np.arange(3)), 1, async_op=True),
                pg.send(np.arange(4), 1, async_op=True),
                pg.send_object("five", 1, async_op=True),
                pg.send(OnDevice(np.arange(6)), 1, async_op=True),
                pg.send(np.arange(7), 1, async_op=True),
            ]
            await asyncio.gather(*sent)
            return
        for count in (3, 6):
            there = OnDevice(np.zeros(count, np.int64))
            assert await pg.recv(there, 0 if count == 3 else None) == 0
            assert np.array_equal(there.values, np.arange(count))
        here = np.zeros(4, np.int64)
        await pg.recv(here, 0)
        assert np.array_equal(here, np.arange(4))
        assert await pg.recv_object(0) == "five"
        here = np.zeros(7, np.int64)
        await pg.recv(here)
        assert np.array_equal(here, np.arange(7))

    await run_cluster(2, main, backend=backend, timeout=5)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("backend", ["postbox", "cpu:host,cuda:device-box"])
async def test_old_word_in_a_slot_is_no_new_operation(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host engine comes to the same slots again after as many numbers as its words can tell apart."""
    monkeypatch.setattr(board, "NUMBER_BITS", 7)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    async def main(pg: ProcessGroup) -> None:
        local = host_of(pg).local
        assert local is not None
        first = pg.issued_count()
        for turn in range(3):
            assert await pg.broadcast_object(("turn", turn, pg.rank)) == ("turn", turn, 0)
            await pg.barrier()
            while (pg.issued_count() - first) % 128:
                mine = np.arange(3) + pg.rank
                there = OnDevice(mine) if "cuda" in backend else mine
                await pg.all_reduce(there)
                assert np.array_equal(mine, np.arange(3) * 2 + 1)
        if pg.rank == 0:
            await asked.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            await pg.broadcast_object("new")
        else:
            work = pg.broadcast_object(None, async_op=True)
            asked.set()
            for _ in range(10):
                local.progress()
                await asyncio.sleep(0)
            assert not work.done()
            assert await work == "new"

    def endpoint(rank: int) -> SocketEndpoint:
        return SocketEndpoint(loop, rank, "job", b"", boot="one host")

    await run_cluster(2, main, backend=backend, endpoint=endpoint)


async def test_place_is_part_of_what_ranks_agree_on() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.CollectiveMismatch) as caught:
            await pg.all_reduce(np.arange(3.0) if pg.rank else OnDevice(np.arange(3.0)))
        assert caught.value.said == {
            0: "all_reduce(float64[3], SUM, device-box)",
            1: "all_reduce(float64[3], SUM, postbox)",
        }

    await run_cluster(2, main, backend=BOTH)


async def test_foreign_operation_and_one_of_the_host_disagree() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.CollectiveMismatch):
            await (pg.barrier() if pg.rank else pg.all_reduce(OnDevice(np.arange(3.0))))

    await run_cluster(2, main, backend=BOTH)


async def test_engines_of_one_group_have_checks_of_their_own() -> None:
    async def main(pg: ProcessGroup) -> None:
        half = await pg.new_group([0, 1])
        for group in (pg, half):
            assert group is not None
            parts = core_of(group).carriers.parts
            assert set(parts) == {"cpu", "cuda"}
            foreign = [part for part in parts.values() if isinstance(part, ForeignBackend)]
            assert len({part._level.context for part in foreign}) == 2

    await run_cluster(2, main, backend=BOTH)


async def test_batch_with_tensors_of_both_places() -> None:
    async def main(pg: ProcessGroup) -> None:
        there, other = OnDevice(np.arange(3) + pg.rank), OnDevice(np.arange(5) - pg.rank)
        here = np.arange(4) + pg.rank
        async with pg.coalesce():
            pg.all_reduce(there)
            pg.all_reduce(here)
            pg.all_reduce(other)
        assert np.array_equal(there.values, np.arange(3) * 2 + 1)
        assert np.array_equal(other.values, np.arange(5) * 2 - 1)
        assert np.array_equal(here, np.arange(4) * 2 + 1)

    await run_cluster(2, main, backend=BOTH)


async def test_mixed_and_misplaced_tensors_are_refused_and_take_no_number() -> None:
    async def main(pg: ProcessGroup) -> None:
        before = pg.issued_count()
        with pytest.raises(dist.UsageError, match="lie on cuda:0 and on the host"):
            _ = pg.all_reduce(np.zeros(3), out=OnDevice(np.zeros(3)))
        with pytest.raises(dist.UsageError, match="lie on cuda:0 and on cuda:1"):
            _ = pg.all_reduce(OnDevice(np.zeros(3)), out=OnDevice(np.zeros(3), 1))
        assert pg.issued_count() == before

    async def devices_only(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match="lies on the host; backend 'device-box' takes"):
            _ = pg.all_reduce(np.zeros(3))
        tensor = OnDevice(np.arange(3) + pg.rank)
        await pg.all_reduce(tensor)
        assert np.array_equal(tensor.values, np.arange(3) * 2 + 1)
        assert await pg.all_gather_object(pg.rank) == [0, 1]

    await run_cluster(2, main, backend=BOTH)
    await run_cluster(2, devices_only, backend="device-box")


# ── without a group ──────────────────────────────────────────────────────────────────────────────────


class Part:
    """A backend that notes what it is told."""

    def __init__(self, name: str, capabilities: str = "one-answer regroups", mark: str | None = None) -> None:
        self.name = name
        self.places = dict.fromkeys(("cpu", "cuda"), name if mark is None else mark)
        self.capabilities = frozenset(capabilities.split())
        self.told: list[Any] = []
        self.released: Callable[[], None] = lambda: None

    def abort(self, released: Callable[[], None] = lambda: None) -> None:
        self.told.append("abort")
        self.released = released

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.told.append((name, *arguments))


def carriers(parts: Mapping[str, Part], takes_host: bool = True) -> tuple[Carriers, Any]:
    """Carriers, and their host engine."""
    below: Any = Part("host", mark="")
    given: Any = parts
    return Carriers("name", frozenset({"alias"}), below, given, takes_host), below


def test_buffers_are_the_users_again_when_the_host_backend_says_so_which_all_others_hold() -> None:
    part = Part("a")
    both, host = carriers({"cuda": part})
    heard: list[str] = []
    both.abort(lambda: heard.append("released"))
    assert part.told == ["abort"]
    assert heard == []
    host.released()
    assert heard == ["released"]


def test_part_in_two_places_is_told_once() -> None:
    part = Part("a")
    both, host = carriers({"cpu": part, "cuda": part}, takes_host=False)
    both.retire()
    both.batch(True)
    assert part.told == [("retire",), ("batch", True)]
    assert host.told == [("retire",)]
    both.abort(lambda: None)
    assert part.told.count("abort") == 1
    assert both.places == {"cpu": "a", "cuda": "a"}
    assert not both.takes_host


def test_host_passes_over_numbers_that_are_not_its_own() -> None:
    part = Part("a")
    both, host = carriers({"cuda": part})

    def operation(kind: Kind, seq: int, place: str) -> Any:
        return SimpleNamespace(call=Call(kind, seq, np.dtype(np.uint8)), place=place)

    device, plain, message = (
        operation(Kind.all_reduce, 5, "cuda"),
        operation(Kind.all_reduce, 6, "cpu"),
        operation(Kind.send, 0, "cuda"),
    )
    for one in (device, plain, message):
        both.submit(one)
    assert host.told == [("skip", 5), ("submit", plain)]
    assert part.told == [("submit", device), ("submit", message)]
    staged = Part("staged", mark="")  # it hands its operations on, to the host
    both, host = carriers({"cuda": staged})
    both.submit(device)
    assert (host.told, staged.told) == ([], [("submit", device)])


def test_capabilities_are_those_of_host_tensors_and_all_must_regroup() -> None:
    both, _ = carriers({"cuda": Part("a", "one-answer")})
    assert both.capabilities == CAPABILITIES - {"regroups"}
    both, _ = carriers({"cuda": Part("a", "regroups")})
    assert both.capabilities == CAPABILITIES
    both, _ = carriers({"cuda": Part("a", "regroups unheard-of")}, takes_host=False)
    assert both.capabilities == {"regroups"}
