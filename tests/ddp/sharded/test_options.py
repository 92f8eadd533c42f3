"""Options of parameter groups: what travels of them, and in which form they are given back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import UsageError
from aiodist.ddp.sharded.options import give_back, plain


def given_back(value: Any, here: Any) -> Any:
    """What an option becomes."""
    group = {"lr": here}
    give_back([group], [{"lr": value}])
    return group["lr"]


PLAIN: list[Any] = [None, True, 3, 0.1, "match_rms", [0.5, None], []]


@pytest.mark.parametrize("value", PLAIN)
def test_plain_values_are_carried_as_they_are(value: Any) -> None:
    assert plain("lr", value) == given_back(value, value) == value


def test_numpy_scalars_keep_their_types() -> None:
    for here, other in (
        (np.float32(0.1), np.float32(0.3)),
        (np.float64(0.1), np.float64(0.3)),
        (np.int64(3), np.int64(5)),
        (np.bool_(True), np.bool_(False)),
        (np.array(0.1, np.float32), np.array(0.3, np.float32)),
    ):
        carried = json.loads(json.dumps(plain("lr", other)))
        found = given_back(carried, here)
        assert (type(found), found.dtype, found) == (type(other), other.dtype, other)
        assert (here != other) == (type(here) is not np.ndarray)  # an array is written


def test_sequences_keep_theirs() -> None:
    betas = given_back(plain("betas", (np.float32(0.5), 0.25)), (np.float32(0.9), 0.999))
    assert betas == (0.5, 0.25) and isinstance(betas, tuple) and type(betas[0]) is np.float32
    assert given_back([1, 2], [3, 4]) == [1, 2]
    assert given_back([1, 2], None) == given_back([1, 2], (3,)) == (1, 2)


def test_a_value_that_the_form_cannot_hold_takes_its_place() -> None:
    forms = ((0.5, np.int64(1)), (None, np.float32(1)), ("x", np.float32(1)), (7, True), (0.1, np.float32(1)))
    for value, here in forms:
        found = given_back(value, here)
        assert (type(found), found) == (type(value), value)
    assert type(given_back(1, np.float32(0.5))) is np.float32


def test_tensors_of_no_dimension() -> None:
    torch: Any = pytest.importorskip("torch")
    assert plain("lr", torch.tensor(0.1)) == np.float32(0.1).item()
    kept = torch.tensor(0.1, dtype=torch.float64)
    assert given_back(0.2, kept) is kept and kept.item() == 0.2
    assert given_back(0.1, torch.tensor(0.5)) == 0.1  # which a float32 cannot have
    pair = (kept, 0.5)
    assert given_back([0.2, 0.5], pair) is pair
    assert given_back([0.3, 0.5], pair)[0] is kept and kept.item() == 0.3


def test_a_tensor_that_groups_share_is_written_where_all_get_the_same() -> None:
    torch: Any = pytest.importorskip("torch")
    shared = torch.tensor(0.1, dtype=torch.float64)
    groups = [{"lr": shared}, {"lr": shared}]
    give_back(groups, [{"lr": 0.2}, {"lr": 0.2}])
    assert groups[0]["lr"] is groups[1]["lr"] is shared and shared.item() == 0.2
    give_back(groups, [{"lr": 0.2}, {"lr": 0.3}])
    assert [group["lr"].item() for group in groups] == [0.2, 0.3]
    assert all(group["lr"].dtype == torch.float64 for group in groups) and shared.item() == 0.2


def test_what_cannot_be_carried_is_refused_by_name() -> None:
    for option in (object(), np.ones(2), 1j, np.complex64(1), [0.1, len], {"a": 1}):
        with pytest.raises(UsageError, match="the option 'speed' of a parameter group"):
            plain("speed", option)
