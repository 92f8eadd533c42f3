"""Lists where a method takes one array, and lists whose rows differ: the error says what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.base.operations import Kind
from aiodist.group import ProcessGroup
from aiodist.group.lists import hint
from aiodist.testing.cluster import run_cluster

UNEVEN = [np.zeros(2), np.zeros(3)]
EVEN = [np.zeros(2), np.zeros(2)]

Call = Callable[[ProcessGroup], Any]


@pytest.mark.parametrize(
    ("said", "call"),
    [
        (
            "got list. Write pg.all_gather(tensor, sizes=[2, 3]), for",
            lambda pg: pg.all_gather(UNEVEN, UNEVEN[0]),
        ),
        (
            "out must be an array or tensor, got tuple. Write pg.all_gather(tensor, sizes=[2, 3])",
            lambda pg: pg.all_gather(UNEVEN[0], tuple(UNEVEN)),
        ),
        (
            "Write pg.all_gather(tensor), with sizes=[rows of each rank] where they differ, for one array",
            lambda pg: pg.all_gather(EVEN, EVEN[0]),
        ),
        (
            "Write pg.reduce_scatter(np.concatenate(tensors), sizes=[2, 3]); torch's form",
            lambda pg: pg.reduce_scatter(UNEVEN),
        ),
        (
            "Write pg.reduce_scatter(np.concatenate(tensors), sizes=[2, 3])",
            lambda pg: pg.reduce_scatter(UNEVEN, sizes=[2, 3]),
        ),
        ("Write pg.gather(tensor, dst), for one array", lambda pg: pg.gather(EVEN)),
        (
            "Pass one array of all parts, such as np.stack(tensors)",
            lambda pg: pg.scatter(np.zeros(2), EVEN, src=pg.rank),
        ),
        ("with in_splits= and out_splits=", lambda pg: pg.all_to_all(EVEN, EVEN)),
        ("got list. Pass a NumPy array", lambda pg: pg.all_reduce(EVEN)),
    ],
)
async def test_a_list_where_one_array_is_taken(said: str, call: Call) -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match=re.escape(said)) as info:
            call(pg)
        assert "\n" not in str(info.value)
        assert (await pg.all_reduce(np.array([pg.rank + 1])))[0] == 3  # no number was taken

    await run_cluster(2, main)


async def test_a_list_whose_rows_differ() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match=r"write pg\.all_gather\(tensor, sizes=\[2, 3\]\)"):
            dist.all_gather(UNEVEN, UNEVEN[pg.rank], pg)
        with pytest.raises(
            dist.UsageError, match=r"pg\.reduce_scatter\(np\.concatenate\(input_list\), sizes=\[2, 3\]\)"
        ):
            dist.reduce_scatter(np.zeros(2 + pg.rank), UNEVEN, group=pg)
        with pytest.raises(dist.UsageError) as info:  # sizes are not the matter
            dist.all_gather([np.zeros(2), np.zeros(2, int)], np.zeros(2), pg)
        assert str(info.value) == "tensor_list[1] is int64[2], expected float64[2]"

    await run_cluster(2, main)


def test_what_is_no_tensor_has_no_rows_and_many_sizes_are_not_listed() -> None:
    assert "sizes=[rows of each rank] where" in hint(Kind.all_gather, False, [1, 2])
    assert "sizes=[rows of each rank] where" in hint(Kind.all_gather, False, [np.zeros(()), np.zeros(2)])
    assert "(tensor, sizes=[rows of each rank])," in hint(
        Kind.all_gather, False, [np.zeros(n) for n in range(99)]
    )
    assert hint(Kind.all_gather, False, np.zeros(2), None) == ""
    assert hint(Kind.gather, True, UNEVEN) == ""
