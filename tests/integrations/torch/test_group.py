"""What torch's group does to tensors beside our operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.base.errors import CollectiveMismatch
from aiodist.base.types import ReduceOp
from aiodist.group import ProcessGroup, shapes
from aiodist.testing import run_cluster

torch = pytest.importorskip("torch")
group = pytest.importorskip("aiodist.integrations.torch.group")


class Ended:
    """A Work that has ended well."""

    def exception(self) -> None:
        return None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        callback(self)


def ended(_pg: Any, **_more: Any) -> Ended:
    return Ended()


@pytest.mark.parametrize("inference", [False, True])
def test_the_loop_changes_tensors_of_inference_mode_too(inference: bool) -> None:
    """The loop's thread is in no such mode, and each change was logged as an error of a callback."""
    with torch.inference_mode(inference):
        total, written = torch.tensor([-31, 30]), torch.tensor([8, 9])
    assert total.is_inference() is inference
    pg = SimpleNamespace(size=4)
    group._reducing(ReduceOp.AVG, total, ended)(pg)
    assert total.tolist() == [-7, 7]
    group._copied(total, written, ended)(pg)
    assert total.tolist() == [8, 9]


@pytest.mark.parametrize("kind", ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"])
async def test_an_average_of_integers_is_no_sum_on_another_rank(kind: str) -> None:
    """Sums travel for both: each rank got a result of its own, and no error."""

    async def member(pg: ProcessGroup) -> None:
        whole = torch.tensor([3 + 4 * pg.rank, 5 + 4 * pg.rank])
        part = whole if kind in ("all_reduce", "reduce") else torch.zeros(1, dtype=torch.int64)
        starts: dict[str, Callable[..., Any]] = {
            "all_reduce": partial(group._all_reduce, whole),
            "reduce": partial(group._reduce, whole, 1),
            "reduce_scatter": partial(shapes.reduce_scatter, output=part, tensors=list(whole.split(1))),
            "reduce_scatter_tensor": partial(shapes.reduce_scatter_tensor, output=part, tensor=whole),
        }
        gets = kind != "reduce" or pg.rank == 1
        divided = asyncio.Event()
        work = group._reducing(ReduceOp.AVG, part, starts[kind], gets)(pg, async_op=True)
        work.add_done_callback(lambda _: divided.set())
        await divided.wait()
        if gets:
            assert part.tolist() == ([5, 7] if part is whole else [7 if pg.rank else 5])
        op = ReduceOp.AVG if pg.rank else ReduceOp.SUM
        with pytest.raises(CollectiveMismatch, match=r"SUM.*; rank 1: .*SUM.*for AVG\)"):
            await group._reducing(op, part, starts[kind], gets)(pg, async_op=True)
            await pg.barrier()  # one that gives to the root alone hears of it here

    await run_cluster(2, member)
