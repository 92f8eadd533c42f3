"""Near misses: what is asked for is named."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import aiodist as dist
from aiodist.base.torch_names import argument_hint
from aiodist.base.types import check_reduction


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("allreduce", "all_reduce"), ("AllGather", "all_gather"), ("init_proces_group", "init_process_group")],
)
def test_a_name_that_is_nearly_one(asked: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"{asked}'; did you mean {meant}\?"):
        getattr(dist, asked)


def test_names_of_nobody() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'zebra'$"):
        _ = cast("Any", dist).zebra
    assert argument_hint(["rank", "patience"], ["rank", "world_size"]) == ""


@pytest.mark.parametrize("name", ["world", "size", "nprocs", "worldsize"])
@pytest.mark.parametrize("call", ["init_process_group", "join"])
def test_an_argument_that_is_nearly_one(call: str, name: str) -> None:
    with pytest.raises(TypeError, match=rf"'{name}'; did you mean world_size=\?"):
        getattr(dist, call)(**{name: 2})
    with pytest.raises(TypeError, match="unexpected keyword argument 'patience'"):
        getattr(dist, call)(patience=2)


@pytest.mark.parametrize(("word", "meant"), [("sum", "SUM"), ("mean", "AVG"), ("prod", "PRODUCT")])
def test_a_word_for_a_reduction(word: str, meant: str) -> None:
    with pytest.raises(dist.UsageError, match=rf"got '{word}'\. Write aiodist's dist\.ReduceOp\.{meant}$"):
        check_reduction(cast("Any", word), np.dtype(np.float32))
