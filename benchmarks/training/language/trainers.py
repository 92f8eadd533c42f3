"""One rank's training by each of the algorithms, by the public classes of aiodist."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import aiodist as dist
from benchmarks.training.language.model import Learner
from benchmarks.training.language.text import Tokens
from benchmarks.training.language.ways import BUCKET_MB, Way


class Trainer(Protocol):
    """The steps of one rank.

    Attributes:
        settled: whether all ranks have the same values after the last step, so that these can be looked at.
    """

    settled: bool

    async def step(self, inputs: Tokens, targets: Tokens) -> None:
        """Train by a batch of this rank's."""

    def values(self) -> list[Any]:
        """Copies of the values that all ranks have alike, by parameter; where it is `settled`."""


class EveryStep:
    """Gradients are averaged in every step, while the backward pass runs. Use `trainer`."""

    settled = True

    def __init__(self, learner: Learner, sync: dist.GradientSync) -> None:
        self._learner, self._sync = learner, sync

    async def step(self, inputs: Tokens, targets: Tokens) -> None:
        """Train by a batch of this rank's, and of all others'."""
        loop = asyncio.get_running_loop()

        def told(index: int, gradient: Any) -> None:
            loop.call_soon_threadsafe(self._sync.ready, index, gradient)

        await asyncio.to_thread(self._learner.backward, inputs, targets, told)
        averages = await self._sync.finish()
        await asyncio.to_thread(self._learner.update, averages)

    def values(self) -> list[Any]:
        """Copies of the parameters."""
        return self._learner.values()


class Rarely:
    """What ranks have moved is averaged once in some steps. Use `trainer`."""

    def __init__(self, learner: Learner, diloco: dist.DiLoCo, fragments: list[list[int]]) -> None:
        self._learner, self._diloco, self._fragments = learner, diloco, fragments
        self.settled = False

    async def step(self, inputs: Tokens, targets: Tokens) -> None:
        """Train by a batch of this rank's; begin and apply the exchanges that are due."""
        before = self._diloco.exchanges
        await asyncio.to_thread(self._learner.train, inputs, targets)
        await self._diloco.step()
        self.settled = self._diloco.exchanges > before

    def values(self) -> list[Any]:
        """Copies of the common values."""
        found = self._learner.values()
        for part, flat in zip(self._fragments, self._diloco.state_dict()["values"], strict=True):
            at = 0
            for index in part:
                size = found[index].size
                found[index] = flat[at : at + size].reshape(found[index].shape)
                at += size
        return found


async def trainer(pg: dist.ProcessGroup, learner: Learner, way: Way) -> Trainer:
    """The trainer of an algorithm; all ranks have rank 0's values then."""
    if not way.rare:
        sync = await dist.GradientSync(pg, learner.parameters, BUCKET_MB, codec=way.codec)
        return EveryStep(learner, sync)
    arguments = dict(way.rare)
    fragments = learner.model.fragments(arguments.pop("fragments", 1))
    diloco = await dist.DiLoCo(pg, learner.parameters, fragments=fragments, codec=way.codec, **arguments)
    return Rarely(learner, diloco, fragments)
