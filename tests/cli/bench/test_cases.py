"""Cases: sizes as nccl-tests count them, values that tell a wrong result from a right one."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.cli.bench.cases import FIVE, Array, Case, WrongResultError, check, fill, five

SIZE = 4
LENGTH = 840  # divisible by 4 · 7 and more


def inputs(length: int, dtype: str = "float32") -> list[Array]:
    arrays = [np.zeros(length, Case("all_reduce", dtype=dtype).numpy_dtype) for _ in range(SIZE)]
    for rank, array in enumerate(arrays):
        fill(array, rank)
    return arrays


@pytest.mark.parametrize(
    ("what", "lengths"),
    [
        ("all_reduce", (256, 0)),
        ("broadcast", (256, 0)),
        ("all_gather", (64, 256)),
        ("reduce_scatter", (256, 64)),
        ("all_to_all", (256, 256)),
        ("reduce", (256, 0)),
        ("gather", (64, 256)),
        ("scatter", (256, 64)),
        ("p2p", (256, 256)),
        ("barrier", (0, 0)),
    ],
)
def test_the_size_is_that_of_the_larger_side(what: str, lengths: tuple[int, int]) -> None:
    assert Case(what, 1024).lengths(SIZE) == lengths


def test_only_the_root_has_the_larger_side() -> None:
    assert Case("gather", 1024).lengths(SIZE, 1) == (64, 0)
    assert Case("scatter", 1024).lengths(SIZE, 3) == (0, 64)


def test_five_lie_side_by_side_and_are_checked_one_by_one() -> None:
    case = Case("five", 1024)
    places = five(case, SIZE)
    length, out_length = case.lengths(SIZE)
    assert tuple(places) == FIVE
    for what, (given, got) in places.items():
        assert (given.stop - given.start, got.stop - got.start) == Case(what, 1024).lengths(SIZE)
    starts = [given.start for given, _ in places.values()]
    assert starts == sorted(starts)
    assert all(start % 16 == 0 for start in starts)

    arrays = inputs(length)
    total = np.sum(arrays, axis=0)
    tensor, out = arrays[2].copy(), np.zeros(out_length, np.float32)
    tensor[places["all_reduce"][0]] = total[places["all_reduce"][0]]
    tensor[places["broadcast"][0]] = arrays[0][places["broadcast"][0]]
    given, got = places["all_gather"]
    out[got] = np.concatenate([array[given] for array in arrays])
    given, got = places["reduce_scatter"]
    with pytest.raises(WrongResultError, match="reduce_scatter"):
        check(case, 2, SIZE, tensor, out)
    out[got] = total[given].reshape(SIZE, -1)[2]
    check(case, 2, SIZE, tensor, out)


def test_the_smallest_sizes_still_give_each_rank_an_element() -> None:
    assert Case("all_to_all", 8).lengths(SIZE) == (4, 4)
    assert Case("all_gather", 1).lengths(SIZE) == (1, 4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_right_all_reduce_passes_and_a_wrong_one_does_not(dtype: str) -> None:
    arrays = inputs(LENGTH, dtype)
    total = sum(array.astype(np.float64) for array in arrays)
    result = np.asarray(total).astype(arrays[0].dtype)
    case, nothing = Case("all_reduce", LENGTH * 4, dtype), arrays[0][:0]
    check(case, 0, SIZE, result, nothing)
    result[17] += 1
    with pytest.raises(WrongResultError, match="element 17"):
        check(case, 0, SIZE, result, nothing)
    with pytest.raises(WrongResultError, match="element 0"):
        check(case, 1, SIZE, arrays[0], nothing)  # nothing was reduced


def test_right_results_of_the_others_pass() -> None:
    arrays = inputs(LENGTH)
    total = np.sum(arrays, axis=0)
    part = LENGTH // SIZE
    for rank in range(SIZE):
        mine = slice(rank * part, (rank + 1) * part)
        check(Case("broadcast", LENGTH * 4), rank, SIZE, arrays[0], arrays[0][:0])
        check(Case("reduce_scatter", LENGTH * 4), rank, SIZE, arrays[rank], total[mine])
        check(Case("all_gather", LENGTH * 4 * SIZE), rank, SIZE, arrays[rank], np.concatenate(arrays))
        exchanged = np.concatenate([array[mine] for array in arrays])
        check(Case("all_to_all", LENGTH * 4), rank, SIZE, arrays[rank], exchanged)
        check(Case("scatter", LENGTH * 4), rank, SIZE, arrays[rank], arrays[0][mine])
        check(Case("reduce", LENGTH * 4), rank, SIZE, arrays[rank] if rank else total, arrays[0][:0])
    check(Case("gather", LENGTH * 4 * SIZE), 0, SIZE, arrays[0], np.concatenate(arrays))
    check(Case("gather", LENGTH * 4 * SIZE), 1, SIZE, arrays[1], arrays[1][:0])
    check(Case("p2p", LENGTH * 4), 0, SIZE, arrays[0], arrays[1])


@pytest.mark.parametrize("what", ["reduce_scatter", "all_gather", "all_to_all", "gather", "scatter", "p2p"])
def test_an_output_that_stayed_empty_is_wrong(what: str) -> None:
    arrays = inputs(LENGTH)
    with pytest.raises(WrongResultError):
        check(Case(what, LENGTH * 4), 0, SIZE, arrays[0], np.zeros(LENGTH, np.float32))
