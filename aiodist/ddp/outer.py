"""The outer optimiser of one fragment: SGD with momentum on what all ranks have moved, on average. Pure.

All ranks have the same values and the same average, and every operation here is elementwise in one order, so
all get the same bits.

Source: A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
arXiv 2311.08105, 2023. With a rate of 1 and no momentum it is the average of all ranks' values: local SGD.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Outer:
    """The rule of the outer step; `ShardedOptimizer` takes it, too.

    Args:
        rate: of learning.
        momentum: 0: none, and no memory for it.
        nesterov: look ahead by it.
    """

    rate: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __call__(self, values: Array, gradient: Array, state: dict[str, Any]) -> None:
        """Move values by a gradient.

        Args:
            values: changed in place.
            gradient: overwritten.
            state: has the 'velocity', of the values' shape; empty at first.
        """
        dtype = values.dtype.type
        if self.momentum:
            if "velocity" not in state:
                state["velocity"] = np.zeros_like(values)
            velocity = state["velocity"]
            np.multiply(velocity, dtype(self.momentum), out=velocity)
            np.add(velocity, gradient, out=velocity)
            if self.nesterov:
                gradient += dtype(self.momentum) * velocity
            else:
                gradient[...] = velocity
        np.multiply(gradient, dtype(self.rate), out=gradient)
        np.subtract(values, gradient, out=values)


class Common:
    """The values of a fragment that all ranks have alike, flat.

    Args:
        count: elements.
        dtype: float32 or float64.
        outer: the rule.

    Attributes:
        values: the parameters after the last outer step.
        velocity: of the momentum; no elements where there is none.
        digest: of both: 8 bytes as a number; 0 where it was not computed yet.
    """

    def __init__(self, count: int, dtype: np.dtype[Any], outer: Outer) -> None:
        self.values = np.zeros(count, dtype)
        self.velocity = np.zeros(count if outer.momentum else 0, dtype)
        self.digest = 0
        self._outer = outer

    def moved(self, local: Array) -> Array:
        """The outer gradient: how far a rank has moved since the last outer step.

        Args:
            local: the rank's values, flat; overwritten with the gradient, and returned.
        """
        return np.subtract(self.values, local, out=local)

    def step(self, gradient: Array) -> None:
        """Do the outer step with the average of all ranks' gradients, which is overwritten."""
        self._outer(self.values, gradient, {"velocity": self.velocity})

    def sign(self) -> None:
        """Compute the digest."""
        found = hashlib.blake2b(self.values.data, digest_size=8)
        found.update(self.velocity.data)
        self.digest = int.from_bytes(found.digest(), "little") or 1
