"""Options of parameter groups: what travels of them, and in which form they are given back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import UsageError
from aiodist.ddp.sharded.options import given_back, plain

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
        assert here != other


def test_sequences_keep_theirs() -> None:
    betas = given_back(plain("betas", (np.float32(0.5), 0.25)), (np.float32(0.9), 0.999))
    assert betas == (0.5, 0.25) and isinstance(betas, tuple) and type(betas[0]) is np.float32
    assert given_back([1, 2], [3, 4]) == [1, 2]
    assert given_back([1, 2], None) == given_back([1, 2], (3,)) == (1, 2)


def test_a_value_that_the_form_cannot_hold_takes_its_place() -> None:
    for value, here in ((0.5, np.int64(1)), (None, np.float32(1)), ("x", np.float32(1)), (7, True)):
        found = given_back(value, here)
        assert (type(found), found) == (type(value), value)
    assert type(given_back(1, np.float32(0.5))) is np.float32


def test_tensors_of_no_dimension() -> None:
    torch: Any = pytest.importorskip("torch")
    shared = torch.tensor(0.1, dtype=torch.float64)
    first, second = given_back(0.2, shared), given_back(0.3, shared)
    assert (first.item(), second.item(), shared.item()) == (0.2, 0.3, 0.1)
    assert first.dtype == torch.float64
    assert plain("lr", torch.tensor(0.1)) == np.float32(0.1).item()


def test_what_cannot_be_carried_is_refused_by_name() -> None:
    for option in (object(), np.ones(2), 1j, np.complex64(1), [0.1, len], {"a": 1}):
        with pytest.raises(UsageError, match="the option 'speed' of a parameter group"):
            plain("speed", option)
