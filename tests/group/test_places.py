"""Where an operation's tensors lie: in one place, which the backend takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.backends.arrays.device import DeviceArray, geometry
from aiodist.base.errors import UsageError
from aiodist.group.places import common_place, misplaced

HERE = np.zeros(3)


def there(device: int = 0) -> DeviceArray:
    return geometry(1 << 40, (3,), None, np.dtype(np.float32), device, None)


@pytest.mark.parametrize(
    ("source", "target", "place"),
    [
        (HERE, None, "cpu"),
        (HERE, HERE, "cpu"),
        (HERE, np.ones(3), "cpu"),
        (None, HERE, "cpu"),
        (HERE, [HERE, HERE], "cpu"),
        ([HERE, HERE], HERE, "cpu"),
        (there(), None, "cuda"),
        (None, there(), "cuda"),
        (there(1), there(1), "cuda"),
        (there(), [there(), there()], "cuda"),
        ([there(), there()], there(), "cuda"),
        (None, None, ""),
        (None, [], ""),
    ],
)
def test_one_place(source: Any, target: Any, place: str) -> None:
    assert common_place(source, target) == place


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (HERE, there(), "lie on cuda:0 and on the host"),
        (there(3), HERE, "lie on cuda:3 and on the host"),
        (there(0), there(1), "lie on cuda:0 and on cuda:1"),
        (HERE, [HERE, there()], "lie on cuda:0 and on the host"),
        ([there(2), there(1)], there(2), "lie on cuda:1 and on cuda:2"),
        (there(0), [there(1), HERE], "lie on cuda:0 and on cuda:1 and on the host"),
    ],
)
def test_several_places(source: Any, target: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        common_place(source, target)
    assert caught.value.hint == "Bring them to one place first"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("cpu", "lies on the host; backend 'mine' takes tensors on CUDA devices"),
        ("cuda", "lies on a CUDA device; backend 'mine' takes tensors on the host"),
    ],
)
def test_place_that_the_backend_does_not_take(place: str, words: str) -> None:
    class Mine:
        name = "mine"

    backend: Any = Mine()
    error = misplaced(place, backend)
    assert words in str(error)
    assert "cpu:host,cuda:nccl" in error.hint
