"""Whatever is passed: it is taken, or refused with a typed error before a number is taken, in one line."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.base.errors import shown
from aiodist.group import ProcessGroup
from aiodist.group import arguments as check
from aiodist.testing import run_cluster
from tests.group.strange import PLAIN, Raises, ThingMaker, calls, of_torch
from tests.helpers import core_of

try:
    import torch
except ImportError:
    torch = None

TORCH = {} if torch is None else of_torch()
THINGS = [*PLAIN.values(), *TORCH.values()]
NAMES = [*PLAIN, *(f"torch's {name}" for name in TORCH)]


async def what_is_wrong(call: Callable[[], Any]) -> Exception | None:
    """What a call, or waiting for it, raises. Of a pickle that cannot be read, which was sent, nothing."""
    made = None
    try:
        made = call()
        for each in made if isinstance(made, list) else [made]:
            if hasattr(each, "__await__"):
                async with asyncio.timeout(30):
                    await each
    except dist.WireError as error:
        return None if isinstance(made, dist.Work) else error
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("make", THINGS, ids=NAMES)
@pytest.mark.filterwarnings("ignore")  # of torch and NumPy, about what is passed
async def test_is_taken_or_refused_before_a_number_is_taken(make: ThingMaker) -> None:
    async def main(pg: ProcessGroup) -> None:
        thing = make()
        for name, call in calls(pg, thing, make is not TORCH.get("freed")):
            before = deepcopy(core_of(pg).numbers)
            wrong = await what_is_wrong(call)
            if wrong is not None:
                assert core_of(pg).numbers == before, f"{name}: {wrong}"
                assert isinstance(wrong, dist.UsageError), f"{name}: {wrong!r}"
                assert len(str(wrong)) < 1000 and "\n" not in str(wrong), f"{name}: {wrong}"
            assert core_of(pg).error is None, f"{name}: {core_of(pg).error!r}"
        assert (await pg.all_reduce(np.arange(3))).tolist() == [0, 1, 2]

    await run_cluster(1, main)


@pytest.mark.parametrize("dimensions", [63, 64])
async def test_as_many_dimensions_as_arrays_have(dimensions: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        tensor = np.full((1,) * dimensions, pg.rank + 1.0)
        assert (await pg.all_reduce(tensor.copy())).item() == 3
        assert (await pg.broadcast(tensor.copy(), 1)).item() == 2
        if dimensions == 63:
            for rows in (await pg.all_gather(tensor), await pg.gather(tensor, 0)):
                assert rows is None or rows.reshape(-1).tolist() == [1, 2]
        else:
            for call in (pg.all_gather, pg.gather):
                if call == pg.all_gather or pg.rank == 0:
                    with pytest.raises(dist.UsageError, match="an array of 65 dimensions is needed"):
                        call(tensor)
        into = [np.empty_like(tensor) for _ in range(2)]
        await dist.all_gather(into, tensor, pg)
        assert [array.item() for array in into] == [1, 2]
        part = np.empty_like(tensor)
        await dist.reduce_scatter(part, [tensor, tensor * 10], group=pg)
        assert part.item() == (3, 30)[pg.rank]
        await dist.scatter(part, into if pg.rank == 0 else None, 0, pg)
        assert part.item() == pg.rank + 1
        await dist.gather(tensor, into if pg.rank == 0 else None, 0, pg)
        if pg.rank:
            await pg.send(tensor, 0)
        else:
            await pg.recv(part, 1)
            assert part.item() == 2
        with pytest.raises(dist.UsageError, match="65 dimensions is needed"):
            pg.empty((1,) * 65)
        assert pg.empty((1,) * 64).ndim == 64

    await run_cluster(2, main)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nested", "tensor is nested"),
        ("jagged", "tensor is nested"),
        ("coo", "tensor is sparse"),
        ("csr", "tensor is sparse"),
        ("quantized", "tensor is quantized"),
        ("meta", "tensor lies on device meta"),
        ("freed", "tensor has no memory: its storage was freed"),
        ("65 dimensions", "cannot be read as an array"),
        ("conjugate", "lazy conjugate"),
        ("float8_e4m3fn", "cannot be communicated"),
    ],
)
async def test_says_what_is_wrong_with_a_tensor_of_torch(name: str, words: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match=words):
            pg.all_reduce(TORCH[name]())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        await run_cluster(1, main)


async def test_a_batch_of_messages_is_checked_before_any_is_under_way() -> None:
    async def main(pg: ProcessGroup) -> None:
        peer = 1 - pg.rank
        good = dist.P2POp(dist.isend, np.ones(3), peer, pg)
        before = deepcopy(core_of(pg).numbers)
        for bad in (
            dist.P2POp(dist.isend, None, peer, pg),
            dist.P2POp(dist.irecv, np.broadcast_to(0.0, 3), peer, pg),
            dist.P2POp(dist.irecv, np.ones(3), 7, pg),
            dist.P2POp(dist.isend, np.ones(3), peer, pg, tag=-1),
            dist.P2POp(dist.isend, np.ones(3), None, pg),
        ):
            with pytest.raises(dist.UsageError):
                dist.batch_isend_irecv([good, bad])
        assert core_of(pg).numbers == before

    await run_cluster(2, main)


async def test_groups_are_checked_before_the_first_of_several_takes_a_number() -> None:
    async def main(pg: ProcessGroup) -> None:
        for lists in ([[0], [7]], [[0], [0, 1]], [[0], 3], [[0], []]):
            with pytest.raises(dist.UsageError):
                await dist.new_subgroups_by_enumeration(lists)  # type: ignore[arg-type]
            with pytest.raises(dist.UsageError):
                await dist.split_group(pg, lists)  # type: ignore[arg-type]
        assert core_of(pg).numbers.issued == before[pg.rank]

    before = [1, 1]  # the barrier of their meeting
    await run_cluster(2, main)


async def test_what_a_rank_expects_of_itself_is_what_it_sends() -> None:
    async def main(pg: ProcessGroup) -> None:
        for sent, expected in (([1, 1], [2, 0]), ([0, 2], [1, 1])):
            rows = expected if pg.rank == 0 else expected[::-1]
            own = sent if pg.rank == 0 else sent[::-1]
            with pytest.raises(dist.UsageError, match=r"this rank sends \d rows to itself, and expects \d"):
                pg.all_to_all(np.ones(2), np.ones(2), own, rows)
        with pytest.raises(dist.UsageError, match="this rank sends 1 elements to itself, and expects 2"):
            dist.all_to_all([np.ones(2), np.ones(2)], [np.ones(1), np.ones(1)], pg)

    await run_cluster(2, main)


async def test_a_process_that_is_no_member_divides_no_world_instead() -> None:
    async def main(pg: ProcessGroup) -> None:
        nobody = dist.GroupMember.NON_GROUP_MEMBER
        with pytest.warns(UserWarning, match="new_subgroups: this process is not a member"):
            assert await dist.new_subgroups(1, nobody) == (nobody, [])
        with pytest.warns(UserWarning, match="split_group: this process is not a member"):
            assert await dist.split_group(nobody, [[0]]) is None

    await run_cluster(1, main)


def test_what_was_passed_in_one_line() -> None:
    assert shown(3) == "3"
    assert shown([1, "a"]) == "[1, 'a']"
    assert shown(np.ones(3)) == "an object of type ndarray"
    assert shown([np.ones(3)]) == "an object of type list"
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown("x" * 500)) < 101
    assert shown(10**5000) == "an int of thousands of digits"
    assert shown(Raises()) == "an object of type Raises"


def test_a_list_is_read_no_further_than_needed() -> None:
    rows = np.broadcast_to(np.uint8(1), (2**62, 0))
    assert len(check.some(rows, 5, "rows", "a list")) == 5
    with pytest.raises(dist.UsageError, match="rows must be a list, got an int of"):
        check.some(10**5000, 5, "rows", "a list")
