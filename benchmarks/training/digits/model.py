"""A small classifier of handwritten digits, of which sums of gradients are exact.

Activations and errors are rounded to multiples of a power of 2, so float64 holds every sum of their products
exactly, in whatever order and however a batch is divided among ranks. So a run that divides its batches
otherwise, since ranks have died, has to give the same bits, or something was lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LAYERS = (64, 32, 10)
DECAY = 3e-3  # so that there is an end to training: the loss settles
_HIDDEN, _ERROR = 2.0**16, 2.0**20  # parts of 1


@dataclass(frozen=True)
class Data:
    """Images, one a row with 64 pixels from 0 to 1, and labels: to train with, and held out."""

    images: Array
    labels: Array
    held_images: Array
    held_labels: Array


class Network:
    """Two dense layers of float64.

    Args:
        seed: of the initial weights.
    """

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng([1, seed])
        inputs, hidden, outputs = LAYERS
        self.weights: list[Array] = [
            random.standard_normal((inputs, hidden)) * np.sqrt(2 / inputs),
            np.zeros(hidden),
            random.standard_normal((hidden, outputs)) * np.sqrt(2 / hidden),
            np.zeros(outputs),
        ]
        self.velocity = [np.zeros_like(weight) for weight in self.weights]

    def gradients(self, images: Array, labels: Array) -> list[Array]:
        """The sums of the images' gradients, in the order of `weights`."""
        hidden, shares = self._forward(images)
        shares[np.arange(len(labels)), labels] -= 1
        error = np.round(shares * _ERROR) / _ERROR
        back = np.round(_rows(error, self.weights[2].T) * _ERROR) / _ERROR * (hidden > 0)
        return [images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]

    def step(self, gradients: list[Array], rate: float, momentum: float) -> None:
        """Gradient descent with momentum, and decay of the weights."""
        for weight, velocity, gradient in zip(self.weights, self.velocity, gradients, strict=True):
            velocity *= momentum
            velocity += gradient + DECAY * weight
            weight -= rate * velocity

    def loss(self, images: Array, labels: Array) -> float:
        """The mean cross entropy."""
        shares = self._forward(images)[1]
        return float(-np.log(shares[np.arange(len(labels)), labels] + 1e-12).mean())

    def accuracy(self, images: Array, labels: Array) -> float:
        """The share of images that are recognised."""
        return float((self._forward(images)[1].argmax(axis=1) == labels).mean())

    def _forward(self, images: Array) -> tuple[Array, Array]:
        """Hidden activations, and the probability of each class."""
        first, first_bias, second, second_bias = self.weights
        hidden = np.round(np.maximum(_rows(images, first) + first_bias, 0) * _HIDDEN) / _HIDDEN
        scores = _rows(hidden, second) + second_bias
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, shares / shares.sum(axis=1, keepdims=True)


def _rows(rows: Array, matrix: Array) -> Array:
    """`rows @ matrix`; a row has the same bits whatever rows are beside it, which BLAS does not promise."""
    summed: Array = (rows[:, :, None] * matrix).sum(axis=1)
    return summed


def digits(held_out: int = 360) -> Data:
    """scikit-learn's 1,797 images of handwritten digits, in one random order."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images, labels = found.data[order] / 16, found.target[order].astype(np.int64)
    return Data(images[held_out:], labels[held_out:], images[:held_out], labels[:held_out])
