"""What torch's group does to tensors beside our operations."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.base.types import ReduceOp

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
