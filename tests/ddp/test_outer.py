"""The outer optimiser, beside torch's SGD."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.ddp.outer import Common, Outer


@pytest.mark.parametrize("rule", [Outer(), Outer(0.3, 0.5, nesterov=False), Outer(1.0, 0.0, nesterov=False)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_sgd_as_torch_has_it(rule: Outer, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    common = Common(50, np.dtype(dtype), rule)
    common.values[...] = rng.standard_normal(50)
    parameter = torch.tensor(common.values.copy(), requires_grad=True)
    nesterov = rule.nesterov and bool(rule.momentum)
    theirs = torch.optim.SGD([parameter], lr=rule.rate, momentum=rule.momentum, nesterov=nesterov)
    for _ in range(5):
        gradient = rng.standard_normal(50).astype(dtype)
        parameter.grad = torch.tensor(gradient)
        theirs.step()
        common.step(gradient)
        assert np.allclose(common.values, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_with_a_rate_of_1_it_is_the_average() -> None:
    common = Common(3, np.dtype(np.float64), Outer(1.0, 0.0, nesterov=False))
    common.values[...] = [1, 2, 3]
    locals_ = [np.array([3.0, 2.0, 7.0]), np.array([5.0, 4.0, 1.0])]
    common.step(np.mean([common.moved(local) for local in locals_], axis=0))
    assert common.values.tolist() == [4, 3, 4] and common.velocity.size == 0


def test_the_digest_tells_values_and_velocity_apart() -> None:
    common = Common(4, np.dtype(np.float32), Outer())
    seen = {common.digest}
    for change in (common.values, common.velocity):
        change[2] = 1.5
        common.sign()
        seen.add(common.digest)
    assert len(seen) == 3 and 0 in seen
