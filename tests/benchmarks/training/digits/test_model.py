"""The classifier: gradients are exact sums, so a batch may be divided among any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training.digits.model import LAYERS, Network


def images(seed: int, count: int) -> Any:
    """Pixels like those of the digits: multiples of 1/16 from 0 to 1."""
    return np.random.default_rng(seed).integers(0, 17, (count, LAYERS[0])) / 16


@given(seed=st.integers(0, 1000), count=st.integers(1, 64), size=st.integers(1, 5))
def test_the_parts_of_a_batch_add_up_to_the_same_bits(seed: int, count: int, size: int) -> None:
    network, pixels = Network(seed), images(seed, count)
    labels = np.random.default_rng([seed, 1]).integers(0, LAYERS[-1], count)
    whole = network.gradients(pixels, labels)
    parts = [network.gradients(pixels[rank::size], labels[rank::size]) for rank in range(size)]
    for index, exact in enumerate(whole):
        # As ranks do it: each multiplies by their number, and the average divides by it.
        mean = np.sum([part[index] * size for part in parts], axis=0) / size
        assert np.array_equal(mean, exact)


def test_gradients_go_downhill() -> None:
    network, pixels = Network(3), images(3, 40)
    labels = np.arange(40) % 10
    losses = [network.loss(pixels, labels)]
    for _ in range(30):
        network.step([one / 40 for one in network.gradients(pixels, labels)], 0.1, 0.9)
        losses.append(network.loss(pixels, labels))
    assert losses[-1] < losses[0] / 2
    assert network.accuracy(pixels, labels) > 0.8


def test_a_gradient_is_the_slope_of_the_loss() -> None:
    network, pixels = Network(4), images(4, 20)
    labels = np.arange(20) % 10
    found = network.gradients(pixels, labels)
    for index, place in [(0, (5, 6)), (1, (7,)), (2, (8, 3)), (3, (2,))]:
        weight, before = network.weights[index], network.weights[index][place]
        losses = []
        for shift in (-0.01, 0.01):
            weight[place] = before + shift
            losses.append(network.loss(pixels, labels))
        weight[place] = before
        assert found[index][place] / 20 == pytest.approx((losses[1] - losses[0]) / 0.02, rel=0.02, abs=1e-4)
