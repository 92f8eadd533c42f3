from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.backends.arrays import like, view, wrap
from aiodist.base.errors import UsageError
from aiodist.base.types import BFLOAT16, DTYPES

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

NAMES = [dtype.name for dtype in DTYPES]


@pytest.mark.parametrize("shape", [(), (0, 2), (3,), (2, 3)])
def test_cpu_tensors_share_memory(shape: tuple[int, ...]) -> None:
    for name in NAMES:
        check_shared(name, shape)


def check_shared(name: str, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape, dtype=getattr(torch, name))
    seen = view(tensor, writable=True)
    assert (seen.dtype.name, seen.shape) == (name, shape)
    if seen.size:
        seen.reshape(-1)[-1] = 1
        assert tensor.reshape(-1)[-1] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strided_tensors(dtype: Any) -> None:
    base = torch.arange(12, dtype=dtype).reshape(3, 4)
    for tensor in (base.T, base[:, ::2], base[1:, 1:]):
        seen = view(tensor, writable=True)
        assert not seen.flags.c_contiguous
        assert seen.astype(np.float32).tolist() == tensor.tolist()
        want = (tensor + 100).tolist()
        np.copyto(seen, seen + seen.dtype.type(100))
        assert tensor.tolist() == want


def test_parameters_are_seen_without_their_graph() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    view(weight, writable=True)[:] = 5
    assert weight.tolist() == [5, 5, 5] and weight.requires_grad


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: torch.empty(2, device="meta"), "tensor lies on device meta"),
        (lambda: torch.ones(2).to_sparse(), "tensor is sparse"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "lazy conjugate"),
        (
            lambda: torch.ones(2).to(torch.float8_e5m2),
            "float8_e5m2 cannot be communicated. Convert to one of",
        ),
        (lambda: torch.ones(3).expand(4, 3), "overlaps itself"),
    ],
)
def test_what_cannot_be_shared_is_refused(make: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        view(make(), writable=True)


def test_results_are_tensors_too() -> None:
    for dtype in (getattr(torch, name) for name in NAMES):
        tensor = torch.ones(2, dtype=dtype)
        made = like(tensor, (3, 2))
        assert isinstance(made, torch.Tensor) and made.dtype == dtype and made.shape == (3, 2)
        again = wrap(tensor, view(tensor, writable=True))
        again.zero_()
        assert not tensor.any()


def test_a_result_may_have_another_dtype() -> None:
    assert like(torch.ones(2), (0, 3), BFLOAT16).dtype == torch.bfloat16
