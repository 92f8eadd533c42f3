"""The model: the same each time, some millions of values, cut into fragments, and gradients told early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from benchmarks.training.language import text  # noqa: E402
from benchmarks.training.language.model import SHAPES, Learner, Model  # noqa: E402
from tests.levels import COSTLY  # noqa: E402

TINY = SHAPES["tiny"]


def batch(rank: int = 0, step: int = 0) -> tuple[text.Tokens, text.Tokens]:
    return text.batch(text.corpus().train, rank, step, TINY.batch, TINY.length)


def test_it_begins_alike_each_time() -> None:
    first = Model(TINY).digest()
    torch.manual_seed(5)
    assert Model(TINY).digest() == first


@pytest.mark.slow(COSTLY)
def test_it_learns_alike_each_time() -> None:
    learners = [Learner(TINY, 1e-2) for _ in range(2)]
    for learner in learners:
        for step in range(3):
            learner.train(*batch(step=step))
    assert len({learner.model.digest() for learner in learners}) == 1
    assert learners[0].model.digest() != Model(TINY).digest()


def test_it_has_a_few_million_values() -> None:
    count = sum(one.numel() for one in Model(SHAPES["small"]).parameters())
    assert 2_000_000 < count < 5_000_000


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fragments_have_each_parameter_once(count: int) -> None:
    model = Model(TINY)
    found = model.fragments(count)
    sizes = [one.numel() for one in model.parameters()]
    assert sorted(index for part in found for index in part) == list(range(len(sizes)))
    filled = [sum(sizes[index] for index in part) for part in found]
    assert max(filled) < 2 * min(filled)


@pytest.mark.slow(COSTLY)
def test_each_gradient_is_told_once_and_is_the_batchs() -> None:
    learner, plain = Learner(TINY, 1e-2), Learner(TINY, 1e-2)
    told: dict[int, Any] = {}

    def tell(index: int, gradient: Any) -> None:
        assert index not in told
        told[index] = gradient.clone()

    learner.backward(*batch(), tell)
    plain.backward(*batch())
    assert next(iter(told)) > len(told) // 2, "those at the end are ready first"
    for index, parameter in enumerate(plain.parameters):
        assert torch.equal(told[index], parameter.grad)


def test_given_gradients_take_the_place_of_its_own() -> None:
    learner, other = Learner(TINY, 1e-2), Learner(TINY, 1e-2)
    learner.backward(*batch(1))
    gradients = [one.grad.clone() for one in learner.parameters]
    learner.update()
    other.backward(*batch(0))
    other.update(gradients)
    assert other.model.digest() == learner.model.digest()


def test_the_held_out_loss_is_the_mean_over_all_pieces() -> None:
    learner = Learner(TINY, 1e-2)
    inputs, targets = text.samples(text.corpus().held_out, 5, TINY.length)
    whole = learner.held_out(learner.values(), inputs, targets)
    each = [
        learner.held_out(learner.values(), inputs[row : row + 1], targets[row : row + 1]) for row in range(5)
    ]
    assert whole == pytest.approx(np.mean(each), rel=1e-5)
    assert learner.held_out(learner.values(), inputs, targets, rows=2) == pytest.approx(whole, rel=1e-5)
    assert whole == pytest.approx(np.log(len(text.ALPHABET)), rel=0.1), "it knows nothing yet"
