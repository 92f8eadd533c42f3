"""A call of a shape that never came before is planned as one that Python plans step by step."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import accumulate, pairwise
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.host.local import plan as planning
from aiodist.backends.host.local.group import LocalGroup
from aiodist.backends.host.local.hub import engine
from aiodist.backends.host.local.plan import INLINE_BLOCK, Path, blocks, path_of, plan_of, reach
from aiodist.backends.work import GroupState
from aiodist.base.environment.thresholds import DEFAULTS, Thresholds
from aiodist.base.errors import UsageError
from aiodist.base.operations import ROLES, Parts
from aiodist.base.types import DTYPES, NO_ROOT, Call, Kind, ReduceOp, check_reduction
from aiodist.group.numbers import Numbers
from tests.levels import few
from tests.observe.recorder.made import a_track

KINDS = [kind for kind, roles in ROLES.items() if roles.source is not Parts.NONE and not roles.message]
KINDS.remove(Kind.scatter)  # its second array is needed, below
OPS = [op for op in ReduceOp if op is not ReduceOp.PREMUL_SUM]
LIMITS = [
    DEFAULTS,
    Thresholds(direct=64, inline=512),
    Thresholds(direct=0, inline=1 << 16, block=4096, staging=4096),
    Thresholds(direct=100_000, inline=20_000),
]
MOST = 100_000  # elements
SHAPES: st.SearchStrategy[tuple[int, ...]] = (
    st.lists(st.one_of(st.integers(0, 4), st.integers(1, 300)), max_size=4)
    .map(lambda axes: (*axes,))
    .filter(lambda shape: prod(shape) <= MOST)
)


def ops_of(kind: Kind, dtype: np.dtype[Any]) -> list[Any]:
    """The ops that callers of a kind may pass."""
    if not ROLES[kind].reduces:
        return [0]
    found = []
    for op in OPS:
        with contextlib.suppress(UsageError):
            found.append(check_reduction(op, dtype))
    return found


@st.composite
def calls(draw: st.DrawFn, size: int) -> Call:
    """Calls that members may agree on, of any shape."""
    kind, dtype = draw(st.sampled_from(KINDS)), draw(st.sampled_from(DTYPES))
    root = draw(st.integers(0, size - 1)) if ROLES[kind].rooted else NO_ROOT
    shape, parts = draw(st.tuples(SHAPES, st.booleans()))
    if shape and parts:
        shape = (shape[0] * size, *shape[1:])
    return Call(kind, 0, dtype, shape, draw(st.sampled_from(ops_of(kind, dtype))) or None, root)


def nbytes_of(call: Call, size: int) -> int:
    """The bytes of a call's buffers, as all ranks agree."""
    return call.nbytes * size if ROLES[call.kind].agrees_on_part else call.nbytes


def layout_of(call: Call, path: Path, size: int, rank: int, limits: Thresholds) -> dict[str, Any]:
    """The reference: parts and blocks of a plan, computed step by step."""
    roles, itemsize = ROLES[call.kind], call.dtype.itemsize
    lanes, depth, block, larger = 1 if roles.source is Parts.ONE else size - 1, 1, 0, 0
    if path is Path.direct:
        kind, parts = "each", [call.count] * size
    elif roles.reduces and not roles.cut and path is not Path.slot:
        line = max(1, 64 // itemsize)
        part = -(-call.count // (size * line)) * line
        bounds = [min(member * part, call.count) for member in range(size + 1)]
        kind, parts = "reduce", [high - low for low, high in pairwise(bounds)]
        if path is Path.bulk:
            block, depth = blocks(size, size - 1, limits)
            larger, _ = blocks(size, 0, limits)
    else:
        whole = roles.cut and not roles.agrees_on_part
        kind, parts = "share", [call.count // size if whole else call.count] * size
        block = INLINE_BLOCK
        if path is Path.bulk:
            block, depth = blocks(size, lanes, limits, phases=1)
    longest = max(parts)
    block, larger = (min(most // itemsize or longest, longest) for most in (block, larger))
    if kind == "share" and path is not Path.bulk:
        depth = -(-longest // block)
    gives = [roles.gives(member, call.root) for member in range(size)]
    gets = [roles.gets(member, call.root) for member in range(size)]
    return {
        "sizes": parts,
        "starts": [0, *accumulate(parts)][:size],
        "gives": [gets[rank] and one for one in gives],
        "gets": [gives[rank] and one for one in gets],
        "kind": engine().KINDS[kind],
        "in_slot": path is Path.slot or (path is Path.direct and call.nbytes <= 8192),
        "longest": longest,
        "total": longest if kind == "each" else sum(parts),
        "block": block,
        "count": -(-longest // block),
        "larger": larger,
        "fewer": -(-longest // larger),
        "depth": depth,
        "lane": -(-block * itemsize // 64) * 64,
        "lanes": lanes,
    }


@settings(max_examples=300)
@given(data=st.data(), size=st.integers(2, 64), limits=st.sampled_from(LIMITS))
def test_a_path_holds_for_all_sizes_that_it_is_said_to_reach(
    data: st.DataObject, size: int, limits: Thresholds
) -> None:
    call = data.draw(calls(size))
    counts = st.one_of(st.integers(1, 3000), st.integers(1, 1 << 24), st.integers(1, 1 << 62))
    call = call.shaped((data.draw(counts),))
    path, reached = reach(call, size, limits)
    assert call.count in reached
    ends = [reached[0], reached[-1], *data.draw(st.lists(st.sampled_from(reached), max_size=3))]
    for count in ends:
        one = call.shaped((count,))
        assert path_of(one, size, nbytes_of(one, size), limits) is path


@pytest.mark.parametrize("limits", LIMITS, ids=["defaults", "small", "blocks", "crossed"])
@pytest.mark.parametrize("size", few([2, 3, 5], [3]))
async def test_new_shapes_are_planned_as_by_python(hubs: Any, size: int, limits: Thresholds) -> None:
    made = [Member(hub, rank, size, limits) for rank, hub in enumerate(hubs(size))]
    member = made[0]

    @settings(max_examples=120)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        call = data.draw(calls(size))
        roles, cut = ROLES[call.kind], ROLES[call.kind].cut and not ROLES[call.kind].agrees_on_part
        array = np.zeros(call.shape, call.dtype)
        work = member.start(call, array)
        if not call.count or (cut and (not call.shape or call.shape[0] % size)):
            assert work is None
            return
        path = path_of(call, size, nbytes_of(call, size), member.limits)
        wanted = plan_of(member.group.board, call, path, member.limits, member.group)
        assert wanted.layout == layout_of(call, path, size, 0, member.limits)
        if path is Path.bulk:
            assert work is None
            return
        plan = work._driver.plan
        assert plan.layout == wanted.layout
        assert (plan.signature, plan.digest) == (call.signature, wanted.digest)
        assert (plan.path, plan.in_thread, plan.sees_all) == (path, False, wanted.sees_all)
        assert plan.call == call == work._call
        assert work._driver.code == plan.digest << 16 | 1
        assert work._noted[0].call == call
        if roles.gets(0, call.root) and roles.target is Parts.EACH and roles.source is Parts.ONE:
            assert work._result.shape == (size, *call.shape)
        again = member.start(call, np.ones(call.shape, call.dtype))
        assert again._driver.plan is plan and again._noted[0] is work._noted[0]
        member.forget()

    check()
    for one in made:
        one.retire()


async def test_scattered_parts_are_planned_as_by_python(hubs: Any) -> None:
    made = [Member(hub, rank, 2, DEFAULTS) for rank, hub in enumerate(hubs(2))]
    for shape in ((), (3,), (2, 5)):
        call = Call(Kind.scatter, 0, np.dtype(np.int32), shape, None, 0)
        for parts in {(2, *shape), (2 * (shape or (1,))[0], *shape[1:])}:
            for member, other in zip(made, (np.zeros(parts, np.int32), None), strict=True):
                work = member.start(call, np.zeros(shape, np.int32), other)
                path = path_of(call, 2, nbytes_of(call, 2), member.limits)
                plan = work._driver.plan
                assert plan.signature == call.signature
                assert plan.layout == layout_of(call, path, 2, member.group.board.rank, member.limits)
                member.forget()
    for member in made:
        member.retire()


async def test_remembered_shapes_are_bounded(hubs: Any) -> None:
    made = [Member(hub, rank, 2, DEFAULTS) for rank, hub in enumerate(hubs(2))]
    member = made[0]
    call = Call(Kind.all_reduce, 0, np.dtype(np.uint8), (), ReduceOp.SUM)
    for count in range(1, 5000):
        assert member.start(call, np.zeros(count, np.uint8)) is not None
        assert member.path.count <= min(count, 1024)
    assert member.path.count > 900
    assert member.group.statistics()["plans"] == member.path.count
    member.forget()
    for one in made:
        one.retire()


@pytest.mark.parametrize("shape", [(), (7,), (1, 1), (12, 345, 6), (1 << 40, 1), (10**18,), tuple([1] * 31)])
async def test_signatures_of_odd_shapes(hubs: Any, shape: tuple[int, ...]) -> None:
    made = [Member(hub, rank, 2, DEFAULTS) for rank, hub in enumerate(hubs(2))]
    call = Call(Kind.broadcast, 0, np.dtype(np.uint8), shape, None, 0)
    array = np.broadcast_to(np.zeros((), np.uint8), shape)
    work = made[0].start(call, array) if prod(shape) < 1 << 30 else None
    assert (work is None) == (prod(shape) > 1 << 30)
    if work is not None:
        assert work._driver.plan.signature == call.signature
    made[0].forget()
    for one in made:
        one.retire()


class Member:
    """One rank's side of a group, which starts calls that nobody answers."""

    def __init__(self, hub: Any, rank: int, size: int, limits: Thresholds) -> None:
        owner: Any = SimpleNamespace(awaits=lambda seq: False)
        thread: Any = SimpleNamespace()
        self.group = LocalGroup(hub, thread, owner, 77, range(size), rank, limits)
        self.limits = planning.fitting(limits, hub.segment_bytes(range(size)))
        self.numbers = Numbers()
        issuer = GroupState(asyncio.get_running_loop(), a_track())
        note: Any = None
        path: Any = self.group.starter(issuer, self.numbers, note)
        self.path = path
        self._begun: list[Any] = []

    def start(self, call: Call, array: Any, other: Any = None) -> Any:
        """Start a call, always as the first of the group."""
        self.numbers.issued = 0
        work = self.path.start(call.kind, array, other, True, call.reduce or 0, call.root)
        if work is not None:
            self._begun.append(work._driver)
        return work

    def forget(self) -> None:
        """Let what has begun be over, for this rank and for others."""
        slots = self.group.board.slots
        for exchange in self._begun:
            slots.discard(exchange)
            exchange.end()
        self._begun.clear()
        slots.finished(0)

    def retire(self) -> None:
        self.forget()
        self.group.retire()
