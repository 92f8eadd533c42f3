"""When which fragment of a model is exchanged, in steps. Pure.

A model is cut into fragments, and each of them is exchanged once in `sync_every` steps, in turn, so that
traffic is spread evenly. An exchange begins after a step and is applied `delay` steps later: meanwhile the
program computes.

Source: A. Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv 2501.18512, 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiodist.base.errors import UsageError


@dataclass(frozen=True)
class Rhythm:
    """The steps at which exchanges begin and are applied; the same on all ranks.

    Args:
        sync_every: steps in which every fragment is exchanged once.
        fragments: how many there are; divides `sync_every`.
        delay: steps from the beginning of an exchange until it is applied; fewer than the steps between
            two exchanges, so that one is under way at a time.

    Raises:
        UsageError: these do not fit each other.
    """

    sync_every: int
    fragments: int = 1
    delay: int = 0

    def __post_init__(self) -> None:
        if self.sync_every % self.fragments:
            raise UsageError(
                f"sync_every={self.sync_every} is not a multiple of {self.fragments} fragments",
                hint="So the steps between two exchanges would differ",
            )
        if not 0 <= self.delay < self.period:
            raise UsageError(
                f"delay={self.delay} must be less than the {self.period} steps between two exchanges",
                hint="One exchange is under way at a time",
            )

    @property
    def period(self) -> int:
        """Steps from one exchange to the next."""
        return self.sync_every // self.fragments

    def begins(self, step: int) -> int | None:
        """The fragment whose exchange begins after a step, counted from 1; None: none does."""
        turn, rest = divmod(step, self.period)
        return (turn - 1) % self.fragments if turn and not rest else None

    def applies(self, step: int) -> int | None:
        """The fragment whose exchange is applied after a step; None: none is."""
        return self.begins(step - self.delay) if step > self.delay else None


def parts(sizes: Sequence[int], fragments: int) -> list[list[int]]:
    """Deal arrays out to fragments of about the same size: the largest first, each to the smallest fragment.

    Args:
        sizes: elements of each array.
        fragments: how many; each gets an array at least.

    Returns:
        the indices of each fragment's arrays, in order.
    """
    if not 1 <= fragments <= max(1, len(sizes)):
        counted = "1 array" if len(sizes) == 1 else f"{len(sizes)} arrays"
        raise UsageError(
            f"{counted} cannot be dealt out to {fragments} fragments",
            hint="Each fragment has one array at least",
        )
    chosen: list[list[int]] = [[] for _ in range(fragments)]
    filled = [(0, 0)] * fragments  # elements and arrays
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        least = min(range(fragments), key=lambda fragment: filled[fragment])
        chosen[least].append(index)
        filled[least] = (filled[least][0] + sizes[index], filled[least][1] + 1)
    return [sorted(indices) for indices in chosen]
