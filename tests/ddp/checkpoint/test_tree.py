"""Trees as nodes: what any number of ranks wrote, any other number reads; ranks that differ are found."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiodist.base.errors import CheckpointError, UsageError
from aiodist.ddp.checkpoint.parts import Parts, Stored
from aiodist.ddp.checkpoint.tree import Alike, PerRank, Some, merged, nodes_of, opened, segments_in, snapshot
from tests.levels import COSTLY


def copied(tree: Any) -> Any:
    return snapshot(tree, "", lambda _, array: np.array(array))


def saved(trees: list[Any]) -> tuple[Any, Any]:
    """The merged node of all ranks' trees, as JSON carries it, and a reader of what they wrote."""
    written: list[dict[str, Any]] = []
    nodes = []
    for rank, tree in enumerate(trees):
        out: dict[str, Any] = {}
        nodes.append(nodes_of(copied(tree), "", rank, len(trees), out))
        written.append(out)
    whole = json.loads(json.dumps(merged(nodes)))
    for _, count, rank, name, _ in segments_in(whole):
        assert written[rank][name].size == count
    return whole, lambda segment, _dtype: written[segment[2]][segment[3]]


def deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


def test_a_tree_that_holds_itself_is_refused() -> None:
    tree: dict[str, Any] = {}
    tree["again"] = tree
    with pytest.raises(UsageError, match=r"^x\.again contains itself"):
        snapshot(tree, "x", lambda _, array: array)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "shape"):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and (one == other or one != one)


arrays = st.builds(
    lambda shape, dtype: np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(["float32", "int64", "bool", "float16"]),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    arrays,
    st.builds(np.float32, st.just(0.5)),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(), st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=10,
)


@pytest.mark.slow(COSTLY)
@given(trees, st.integers(1, 5), st.integers(1, 7))
@example(float("nan"), 2, 1)
@example({1: np.arange(3), "1": np.arange(4), "1.2": np.arange(5), "1'": [0, 1, np.arange(6)]}, 2, 3)
def test_what_is_alike_comes_back(tree: Any, size: int, other: int) -> None:
    node, read = saved([{"": tree}] * size)
    for rank in range(other):
        assert same(opened(node, rank, other, read), {"": tree})


@given(st.integers(0, 50), st.lists(st.integers(0, 50), max_size=4), st.data())
def test_parts_come_back_as_a_whole(count: int, cuts: list[int], data: Any) -> None:
    whole = np.arange(count) * 3
    edges = sorted({0, count, *(cut for cut in cuts if cut < count)})
    owners = [data.draw(st.integers(0, 2)) for _ in edges[1:]]
    ranks = []
    for rank in range(3):
        parts = [
            (a, whole[a:b]) for a, b, owner in zip(edges, edges[1:], owners, strict=False) if owner == rank
        ]
        ranks.append(
            {"x": Some({"y": Parts(whole.dtype, (count,), parts)})} if parts or rank == 0 else {"x": Some()}
        )
    node, read = saved(ranks)
    stored = opened(node, 0, 1, read)["x"]["y"]
    assert isinstance(stored, Stored) and stored.array().tolist() == whole.tolist()
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    assert stored.read(start, stop).tolist() == whole[start:stop].tolist()


def test_what_lacks_is_said() -> None:
    parts = Parts(np.dtype(int), (10,), [(0, np.arange(4)), (6, np.arange(6, 10))])
    assert parts.read(1, 4).tolist() == [1, 2, 3]
    with pytest.raises(CheckpointError, match="elements 4 to 8 of an array are not there"):
        parts.read(2, 8)


def test_what_each_rank_has_for_itself() -> None:
    node, read = saved(
        [{"x": PerRank({"seed": rank, "a": np.arange(3) + rank}), "y": 1} for rank in range(3)]
    )
    for rank in range(3):
        found = opened(node, rank, 3, read)
        assert found["x"]["seed"] == rank and found["x"]["a"].tolist() == [rank, rank + 1, rank + 2]
    assert opened(node, 0, 2, read) == {"x": None, "y": 1}


def test_an_owner_says_what_to_do_where_ranks_differ() -> None:
    def tree(*values: int) -> Any:
        return {"w": Alike({"b": {str(one): [one] for one in values}}, "Make it alike"), "x": 1}

    node, read = saved([tree(1), tree(1)])
    assert opened(node, 0, 2, read) == tree(1) and "Make it" not in str(node)
    with pytest.raises(CheckpointError, match=r"^w\.b\.2 is not the same on all ranks. Make it alike"):
        saved([tree(1), tree(1, 2)])
    with pytest.raises(CheckpointError, match=r"^x is not the same on all ranks. Pass PerRank"):
        saved([tree(1), {**tree(1), "x": 2}])


@pytest.mark.parametrize(
    ("tree", "other", "path"),
    [
        (1, 2, "w"),
        (1, 1.0, "w"),
        (1, True, "w"),
        (np.zeros(3), np.array([0, 0, 1.0]), "w"),
        (np.zeros(3), np.zeros(4), "w"),
        (np.zeros(3), np.zeros(3, np.float32), "w"),
        ([1, {"a": [2]}], [1, {"a": [3]}], "w.1.a.0"),
        ({"a": 1}, {"b": 1}, "w.[ab]"),
        ([1], [1, 2], "w"),
        ([1], (1,), "w"),
        (None, [], "w"),
    ],
)
def test_ranks_that_differ_are_found(tree: Any, other: Any, path: str) -> None:
    for pair in ([tree, other], [other, tree], [tree, tree, other]):
        with pytest.raises(CheckpointError, match=rf"^{path} is not the same on all ranks. Pass PerRank"):
            saved([{"w": one} for one in pair])


@pytest.mark.parametrize(
    ("tree", "match"),
    [
        ({"a": object()}, "x.a is an object of type object, which cannot be saved"),
        ({(1, 2): 3}, "x has the key"),
        ({"a": b"bytes"}, "x.a is b'bytes', which cannot be saved"),
        ([{"a": {True: 1}}], "x.0.a has the key True"),
        ({"a": PerRank([PerRank(3)])}, "x.a.0 is a PerRank within a PerRank"),
        (deep(46), r"x\.0\.0.* has more than 45 levels"),
    ],
)
def test_what_cannot_be_saved_is_refused(tree: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        snapshot(tree, "x", lambda _, array: array)


def test_tensors_come_back_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "half": torch.ones(3).bfloat16(),
    }
    node, read = saved([before] * 2)
    after = opened(node, 0, 1, read)
    assert after["half"].dtype == torch.bfloat16
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(after["model"])
    assert torch.equal(other.weight, model.weight)
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(after["optimizer"])
    for one, two in zip(optimizer.state.values(), again.state.values(), strict=True):
        assert torch.equal(one["exp_avg"], two["exp_avg"]) and one["step"] == two["step"]


def test_a_tree_that_holds_the_same_parts_again_and_again_is_refused() -> None:
    """A walk of every way to them, on the loop, would take years."""
    doubled: dict[str, Any] = {"a": np.arange(3)}
    for _ in range(40):
        doubled = {"a": doubled, "b": doubled}
    with pytest.raises(UsageError, match="holds the same parts so often"):
        snapshot(doubled, "x", lambda _, array: array)
    tied = [np.arange(5)] * 1000
    assert len(snapshot({"tied": tied, "again": tied}, "x", lambda _, array: array)["again"]) == 1000
