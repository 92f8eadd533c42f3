"""The trainings: whole numbers, so that averages are exact for any number of members, and each step adds what
no other step does."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

import aiodist as dist
from aiodist.ddp.checkpoint.parts import Parts
from aiodist.group import ProcessGroup
from tests.trainings.ledger import Call, Ledger
from tests.trainings.plan import Plan

T = TypeVar("T")
COUNTS = (5, 1, 8)
BASE = 1_000_000.0
"""Of the values with which a process of `wrapper` begins: this, times its number and one. Steps add less."""
ITEMS = 12


def gradients(step: int, rank: int, size: int) -> list[np.ndarray]:
    """A rank's share of a step's items, times the size."""
    mine = size * sum(1 + number + step * step for number in range(ITEMS) if number % size == rank)
    return [np.full(count, mine * (1 + count % 3), np.float64) for count in COUNTS]


def fresh() -> list[np.ndarray]:
    return [np.zeros(count) for count in COUNTS]


def momentum(values: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> None:
    state["count"] = state.get("count", 0) + 1
    velocity = state.setdefault("velocity", np.zeros_like(values))
    velocity += gradient - velocity / 4
    values -= velocity * state["count"]


@cache
def after(steps: int) -> list[bytes]:
    """The values that so many steps give."""
    values, states = fresh(), [dict[str, Any]() for _ in COUNTS]
    for step in range(steps):
        for one, gradient, state in zip(values, gradients(step, 0, 1), states, strict=True):
            momentum(one, gradient, state)
    return [one.tobytes() for one in values]


def bytes_of(arrays: list[np.ndarray]) -> list[bytes]:
    return [one.tobytes() for one in arrays]


class Trainer:
    """One process of a training.

    Args:
        plan: of the training.
        ledger: of it.
        parts: what is being saved, by epoch and step: the part of each rank.
        shelf: the checkpoints that are whole, by step: all parts.
        number: of the process.
        joined: it came later.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        parts: dict[tuple[int, int], dict[int, Any]],
        shelf: dict[int, list[Any]],
        number: int,
        joined: bool,
    ) -> None:
        self.plan, self.ledger, self.parts, self.shelf = plan, ledger, parts, shelf
        self.number, self.joined = number, joined
        self._draw = random.Random(f"trainer/{plan.seed}/{number}")

    def note(self, what: str) -> None:
        self.ledger.note(asyncio.get_running_loop().time(), self.number, what)

    async def run(self, pg: ProcessGroup) -> str:
        """Train to the end."""
        self.note(f"begins in epoch {pg.epoch} as rank {pg.rank} of {pg.size}")
        train: Callable[[ProcessGroup], Awaitable[str]] = getattr(self, self.plan.kind)
        return await train(pg)

    async def call(self, call: Callable[[], Coroutine[Any, Any, T]], again: bool) -> T | None:
        """Await a call, which may be cancelled → what it returns; None: it was cancelled.

        Args:
            again: a cancelled call is called again until it ends, and not before its step goes on.
        """
        while True:
            task = asyncio.ensure_future(call())
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # of the dead
            if self._draw.random() < self.plan.cancels:
                for _ in range(self._draw.randint(1, 30)):  # one turn at least: else nothing begins
                    await asyncio.sleep(0)
                task.cancel()
            try:
                return await task
            except asyncio.CancelledError as error:
                if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    raise  # a death
                self.note("was cancelled")
                if isinstance(error.__cause__, dist.AiodistError):
                    raise error.__cause__ from None  # it is told, too
                if not again:
                    return None

    # ── a sharded optimiser, with checkpoints ────────────────────────────────────────────────────────

    async def sharded(self, pg: ProcessGroup) -> str:
        plan, ledger, mine = self.plan, self.ledger, fresh()
        more: dict[str, Any] = {"restore": self._restore} if plan.restores else {}
        optimizer = dist.ShardedOptimizer(
            pg, mine, momentum, elastic=True, redundancy=plan.copies, bucket_cap_mb=0.00005, **more
        )
        while optimizer.steps < plan.steps or not has_values(optimizer):
            before, epoch = optimizer.steps, optimizer.pg.epoch
            try:
                if not has_values(optimizer):
                    self.note("awaits it")
                    await optimizer
                    self._check(optimizer.steps, mine)
                    if not self.shelf:
                        self._began(optimizer.steps)
                    continue
                await asyncio.sleep(plan.pause)
                given = gradients(before, optimizer.pg.rank, optimizer.pg.size)
                found = await self.call(partial(optimizer.step, given), False)
            except dist.StateLost:
                self.note("lost the state")
                if plan.restores and self.shelf:
                    ledger.wrong(f"process {self.number}: StateLost, though there is a checkpoint to restore")
                await self._reload(optimizer)
                if not self.shelf:
                    return "lost"  # and a newcomer without others does not begin anew
                continue
            counted = None if found is None else bool(found)
            self.note(f"step {before}: {counted}, now {optimizer.steps} in epoch {optimizer.pg.epoch}")
            if has_values(optimizer):
                ledger.said(Call(self.number, epoch, before, optimizer.steps, counted))
                self._check(optimizer.steps, mine)
                if optimizer.steps % plan.every == 0 and optimizer.steps == before + 1:
                    await self._save(optimizer)
        return "done"

    def _check(self, steps: int, mine: list[np.ndarray]) -> None:
        if bytes_of(mine) != after(steps):
            self.ledger.wrong(f"process {self.number}: the values are not those of {steps} steps")

    async def _save(self, optimizer: dist.ShardedOptimizer) -> None:
        pg, steps = optimizer.pg, optimizer.steps
        parts = self.parts.setdefault((pg.epoch, steps), {})
        parts[pg.rank] = copy.deepcopy(optimizer.state_dict())
        try:
            await pg.barrier()
        except dist.GroupBroken as error:
            self.note(f"saved nothing: {error}")
        else:
            self.shelf[steps] = list(parts.values())

    async def _restore(self, optimizer: dist.ShardedOptimizer) -> None:
        self.note(f"restores, of {sorted(self.shelf)}")
        self.ledger.restored += 1
        chosen = await optimizer.pg.broadcast_object(max(self.shelf, default=0), 0)
        if chosen:
            optimizer.load_state_dict(merged(self.shelf[chosen]))

    async def _reload(self, optimizer: dist.ShardedOptimizer) -> None:
        """Load, without a word from the object: until all have."""
        with_others = True
        while with_others:
            with_others = False
            try:
                await self._restore(optimizer)
            except dist.GroupBroken:
                pass  # the await of the optimizer finds the next epoch

    # ── gradients ────────────────────────────────────────────────────────────────────────────────────

    async def sync(self, pg: ProcessGroup) -> str:
        plan, ledger, mine, step = self.plan, self.ledger, fresh(), np.zeros((), np.int64)
        # With a codec: a bucket for each array, whose gradients are all alike, so that nothing is rounded.
        cap = 0.00005 if plan.codec is None else 1e-6
        sync = await dist.GradientSync(
            pg, mine, elastic=True, state=[step], bucket_cap_mb=cap, codec=plan.codec
        )
        self._began(int(step))
        while step < plan.steps:
            before, epoch = int(step), sync.pg.epoch
            self._check_sums(before, mine)
            await asyncio.sleep(plan.pause)
            for index, gradient in enumerate(self._gradients(before, sync.pg.rank, sync.pg.size)):
                sync.ready(index, gradient)
            averages = await self.call(sync.finish, True)
            assert averages is not None
            if averages:
                for one, average in zip(mine, averages, strict=True):
                    one += average
                step += 1
            self.note(f"step {before}: {bool(averages)}, now {int(step)} in epoch {sync.pg.epoch}")
            ledger.said(Call(self.number, epoch, before, int(step), bool(averages)))
            if not averages and step != before:
                ledger.wrong(f"process {self.number}: step {before} went back to {int(step)}")
        self._check_sums(int(step), mine)
        return "done"

    def _began(self, steps: int) -> None:
        if self.joined and steps < self.ledger.reached - 1:
            self.ledger.wrong(
                f"process {self.number}: a newcomer begins at {steps}, others had {self.ledger.reached}"
            )

    def _gradients(self, step: int, rank: int, size: int) -> list[np.ndarray]:
        """Of `gradients`; with the codec's 8 bits, multiples of the largest code, which it does not round."""
        return [one * (1 if self.plan.codec is None else 127) for one in gradients(step, rank, size)]

    def _check_sums(self, steps: int, mine: list[np.ndarray]) -> None:
        wanted = fresh()
        for step in range(steps):
            for one, gradient in zip(wanted, self._gradients(step, 0, 1), strict=True):
                one += gradient
        if bytes_of(mine) != bytes_of(wanted):
            self.ledger.wrong(f"process {self.number}: the sums are not those of {steps} steps")

    # ── a module of torch's ──────────────────────────────────────────────────────────────────────────

    async def wrapper(self, pg: ProcessGroup) -> str:
        """Each process begins with other values; the first that all have are one process's, and whole."""
        import torch

        class Summed(torch.nn.Module):  # type: ignore[misc]
            """A module whose gradients are what it is given."""

            def __init__(self, base: float) -> None:
                super().__init__()
                values = (torch.full((count,), base, dtype=torch.float64) for count in COUNTS)
                self.weights = torch.nn.ParameterList(map(torch.nn.Parameter, values))
                self.register_buffer("passes", torch.zeros(3, dtype=torch.float64) + base)

            def forward(self, given: list[np.ndarray]) -> torch.Tensor:
                self.passes += 1
                pairs = zip(self.weights, map(torch.from_numpy, given), strict=True)
                return torch.stack([(weight * one).sum() for weight, one in pairs]).sum()

        plan, ledger = self.plan, self.ledger
        module = Summed(BASE * (self.number + 1))
        common = torch.full((4,), BASE * (self.number + 1), dtype=torch.float64)
        step = torch.zeros((), dtype=torch.int64)
        ddp = await dist.DistributedDataParallel(
            module, pg, elastic=True, state=[common, step], bucket_cap_mb=0.00005
        )
        self._began(int(step))
        while True:
            offsets = [
                sum(gradients(done, 0, 1)[index][0] for done in range(int(step))) for index in range(3)
            ]
            offsets += [int(step), 0]
            found = [*module.weights, module.passes, common]
            bases = [one.detach().numpy() - offset for one, offset in zip(found, offsets, strict=True)]
            base = round(float(common[0]))
            if base % BASE or not all((np.abs(one - base) < 1e-3).all() for one in bases):
                ledger.wrong(
                    f"process {self.number}: no values of one process, and {int(step)} steps: {bases}"
                )
            if step >= plan.steps:
                return "done"
            before, epoch = int(step), ddp.pg.epoch
            ddp.zero_grad()
            ddp(gradients(before, ddp.pg.rank, ddp.pg.size)).backward()
            await asyncio.sleep(plan.pause)
            counted = await self.call(ddp.sync, True)
            if counted:
                with torch.no_grad():
                    for weight in module.weights:
                        weight += weight.grad
                step += 1
            self.note(f"step {before}: {counted}, now {int(step)} in epoch {ddp.pg.epoch}")
            ledger.said(Call(self.number, epoch, before, int(step), counted, base))

    # ── rare communication ───────────────────────────────────────────────────────────────────────────

    async def diloco(self, pg: ProcessGroup) -> str:
        plan, ledger, own = self.plan, self.ledger, fresh()
        diloco = await dist.DiLoCo(
            *(pg, own),
            sync_every=plan.every,
            fragments=plan.fragments,
            delay=plan.delay,
            outer_lr=1.0,
            outer_momentum=0.0,
            elastic=True,
        )
        self._began(diloco.steps)
        while diloco.steps < plan.steps:
            before, epoch, had = diloco.steps, diloco.pg.epoch, diloco.exchanges
            await asyncio.sleep(plan.pause)
            broken = before in plan.breaks
            for count, one in zip(COUNTS, own, strict=True):
                one += np.inf if broken else (np.arange(count) % 7 + before) * 4
            try:
                await self.call(diloco.step, False)
            except dist.NonFiniteValues:
                self.note("values are not finite")
            if not all(np.isfinite(one).all() for one in own):
                flat = diloco.state_dict()["values"] if diloco._under_way is None else None
                if flat is not None:
                    for part, values in zip(diloco._parts, flat, strict=True):
                        at = 0
                        for index in part:
                            own[index][...] = values[at : at + own[index].size]
                            at += own[index].size
            self.note(f"step {before}: now {diloco.steps}, {diloco.exchanges} exchanges")
            state = (diloco.exchanges, [one.values.tobytes() for one in diloco._commons])
            said = Call(self.number, epoch, before, diloco.steps, True, state)
            ledger.said(said, together=diloco.exchanges > had)
        if diloco.repairs:
            ledger.wrong(f"process {self.number} had other common values {diloco.repairs} times")
        return "done"


def has_values(optimizer: dist.ShardedOptimizer) -> bool:
    """Whether it has the common values: then there is nothing to await."""
    return optimizer._synced


def merged(parts: list[Any]) -> dict[str, Any]:
    """What several ranks saved, as one."""
    first = parts[0]
    arrays: dict[str, Any] = {}
    for part in parts:
        for index, told in part["arrays"].items():
            kept = arrays.setdefault(index, {"elements": {}, "whole": {}, "scalar": dict(told["scalar"])})
            kept["values"] = _joined(kept.get("values"), told["values"])
            for name, one in told["elements"].items():
                kept["elements"][name] = _joined(kept["elements"].get(name), one)
    return {**first, "arrays": arrays}


def _joined(one: Parts | None, other: Parts) -> Parts:
    return other if one is None else Parts(one.dtype, one.shape, [*one.parts, *other.parts])
