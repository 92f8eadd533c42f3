"""Data-parallel training over arrays: one set of values at the start, averaged gradients at each step."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays import view, wrap
from aiodist.backends.arrays.kernels import copy_into
from aiodist.base.errors import Evicted, GroupBroken, NonFiniteValues, QuorumLost, UsageError, shown
from aiodist.base.types import FLOATS, ReduceOp, check_reduction
from aiodist.ddp.arguments import listed
from aiodist.ddp.awaited import Once
from aiodist.ddp.buckets import Bucket, cap_of, digest, plan
from aiodist.ddp.holders import first_holder, is_orphan, misfit, note_values
from aiodist.group import ErrorFeedback, ProcessGroup
from aiodist.group.quantized import codec_named

Array = npt.NDArray[Any]


class GradientSync:
    """A synchroniser of a model's copies on all ranks of a group: it keeps them equal.

    Construction starts the broadcast of rank 0's values into all ranks' arrays (elastic: the await does);
    await the object once before the first step. Then, in each step, mark every gradient ready as soon as it
    is computed, in any order; communication goes on while you compute the others. `finish` gives the
    averages::

        sync = await dist.GradientSync(pg, weights)
        for batch in batches:
            for index, gradient in backward(weights, batch):
                sync.ready(index, gradient)
            for weight, average in zip(weights, await sync.finish()):
                weight -= rate * average

    Gradients travel in buckets: arrays of one dtype, in reverse order, about `bucket_cap_mb` each. A
    bucket's all_reduce starts when its last gradient is ready. Buckets start in the same order on all
    ranks, as the group demands, so a bucket that is full early waits for those before it.

    With `elastic=True` members may die and newcomers join at any moment. A step then counts only if all
    members say so; if one died, or a newcomer waits, `finish` forms the next epoch, gives
    newcomers the values of those who were there, and returns an empty list: the step is done again::

        pg = await dist.join()
        sync = await dist.GradientSync(pg, weights, elastic=True, state=[*velocity, step])
        while step[0] < steps:
            for index, gradient in backward(weights, batch_of(step[0], sync.pg.rank, sync.pg.size)):
                sync.ready(index, gradient)
            averages = await sync.finish()
            if averages:
                update(weights, velocity, averages)
                step += 1

    Args:
        pg: the process group; elastic: a world. All its members construct with arrays of the same shapes and
            dtypes.
        arrays: the model's values: NumPy arrays or torch CPU tensors, floating or complex, writable.
            Written until `await sync` is done, and, elastic, by `finish`. They tell shapes and dtypes of the
            gradients.
        bucket_cap_mb: size at which a bucket is closed, in MiB.
        elastic: go on when members die or join.
        state: what else every member must have alike, newcomers too: writable arrays (momentum, a counter of
            steps), treated like the values of `arrays`, any dtype.
        codec: 'int8' or 'int4': gradients travel quantised, by `ProcessGroup.all_reduce_quantized`, and what
            rounding leaves out of a bucket is added at the next step. Complex gradients travel as they are.
        min_size: elastic: with fewer members training ends by `QuorumLost`.

    Attributes:
        pg: the group; another one after each change.

    Raises:
        UsageError: an array cannot be communicated or averaged, or is read-only; elastic: the members of the
            group never change.
    """

    def __init__(
        self,
        pg: ProcessGroup,
        arrays: Iterable[Any],
        bucket_cap_mb: float = 25,
        *,
        elastic: bool = False,
        state: Iterable[Any] = (),
        min_size: int = 1,
        codec: str | None = None,
    ) -> None:
        cap_nbytes = cap_of(bucket_cap_mb)
        self.pg = pg
        self._elastic = elastic
        self._min_size = min_size
        if elastic:
            pg.check_rebuild()
        self._holds = False  # this rank has had the common values
        self._ending = Once[list[Any]]()
        self._sharing = Once[None]()
        self._finishing = False
        tensors = listed(arrays, "arrays", "GradientSync")
        self._values: list[Array] = []
        for index, tensor in enumerate(tensors):
            value = view(tensor, writable=True, what=f"arrays[{index}]")
            check_reduction(ReduceOp.AVG, value.dtype)
            self._values.append(value)
        self._state = [
            view(array, writable=True, what=f"state[{index}]")
            for index, array in enumerate(listed(state, "state", "GradientSync"))
        ]
        self._tensors = tensors
        self._buckets = plan([(v.dtype, v.size) for v in self._values], cap_nbytes)
        self._codec = codec
        self._plan = "" if codec is None else f"buckets {codec_named(codec).name} {digest(self._buckets)}"
        shapes = [(one.dtype.name, one.shape) for one in (*self._values, *self._state)]
        layout = f"{shapes} {len(self._state)} {self._buckets} {self._plan}".encode()
        self._layout = int.from_bytes(hashlib.blake2b(layout, digest_size=8).digest(), "little")
        self._feedback = [ErrorFeedback() for _ in self._buckets]
        self._memory: list[Array] = []
        self._slices: dict[int, Array] = {}
        self._bucket_of: dict[int, int] = {}
        self._averages: list[Any] = []
        self._missing: list[set[int]] = []
        self._works: list[Awaitable[Any]] = []
        self._begin()

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The layout, in the order in which buckets start."""
        return tuple(self._buckets)

    def _begin(self) -> None:
        """Make buckets in the group's memory; where members never change, start the broadcast."""
        self._memory = [self.pg.empty(bucket.count, bucket.dtype) for bucket in self._buckets]
        for number, bucket in enumerate(self._buckets):
            for slot in bucket.slots:
                part = self._memory[number][slot.start : slot.stop]
                self._slices[slot.index] = part.reshape(self._values[slot.index].shape)
                self._bucket_of[slot.index] = number
        self._averages = [wrap(tensor, self._slices[index]) for index, tensor in enumerate(self._tensors)]
        self._reset()
        self._synced = False
        self._arriving = [array.copy() for array in self._state]  # a failed broadcast must leave no half
        self._initial = [] if self._elastic else self._broadcast(0)

    def _reset(self) -> None:
        self._missing = [{slot.index for slot in bucket.slots} for bucket in self._buckets]
        self._works = []

    # ── initial values ───────────────────────────────────────────────────────────────────────────────

    def _broadcast(self, source: int) -> list[Awaitable[Any]]:
        if self.pg.rank == source:
            for index, value in enumerate(self._values):
                copy_into(self._slices[index], value)
        arrays = (*self._memory, *self._arriving)
        return [self.pg.broadcast(memory, source, async_op=True) for memory in arrays]

    async def synced(self) -> None:
        """Wait until every array holds the common values: at the very beginning rank 0's. `await sync` does
        this and gives `sync`. Cancelling it ends only the wait.

        Raises:
            UsageError: elastic: this rank has other arrays, or other buckets, than members that have the
                values, which go on without it; at the very beginning: than another rank.
            GroupBroken: the arrays are then as they were. Elastic: only `Evicted` and `QuorumLost`; that,
                too, where all died that had the values.
        """
        if not self._synced or self._sharing.pending:
            await self._sharing.of(self._share)

    async def _share(self) -> None:
        while not self._synced:
            source = 0
            try:
                if self._elastic:
                    mine = np.array([self._holds, is_orphan(self.pg), self._layout], np.uint64)
                    holds, orphans, layouts = (await self.pg.all_gather(mine)).T.tolist()
                    self._check_layout(misfit(layouts, holds, self.pg.rank))
                    if any(one != self._layout for one in layouts):  # a newcomer's, who leaves
                        await self._regroup()
                        continue
                    source = first_holder(holds, orphans)
                    self._initial = self._broadcast(source)
                for work in self._initial:
                    await work
            except GroupBroken as error:
                await self._regroup(error)
                continue
            self._synced = self._holds = True
            if self._elastic:
                note_values(self.pg)
            if self.pg.rank != source:
                for index, value in enumerate(self._values):
                    copy_into(value, self._slices[index])
                for value, arrived in zip(self._state, self._arriving, strict=True):
                    copy_into(value, arrived)

    def _check_layout(self, other: int | None) -> None:
        if other is not None:
            raise UsageError(
                f"rank {self.pg.ranks[other]} has other arrays, or other buckets, than rank "
                f"{self.pg.ranks[self.pg.rank]}",
                hint="Construct GradientSync with the same shapes and arguments on all ranks",
            )

    async def _regroup(self, error: GroupBroken | None = None) -> None:
        """Go on with the members that are left, and newcomers; the values are to be shared then."""
        if error is not None and (not self._elastic or isinstance(error, Evicted | QuorumLost)):
            raise error
        self.pg = await self.pg.rebuild(self._min_size)
        self._begin()

    def __await__(self) -> Generator[Any, None, GradientSync]:
        yield from self.synced().__await__()
        return self

    # ── each step ────────────────────────────────────────────────────────────────────────────────────

    def ready(self, index: int, grad: Any) -> None:
        """Pass one gradient of this step. It is copied, so you may change `grad` when this returns. Copying
        takes the loop about 0.1 ms for each MiB.

        What `finish` returned at the last step is overwritten from now on.

        Args:
            index: of the array in `arrays`.
            grad: same shape and dtype as that array.

        Raises:
            UsageError: there is no such array, the gradient does not fit it or was given already, or
                `sync` was never awaited.
        """
        if not self._synced:
            raise UsageError(
                "the initial values may not have arrived yet",
                hint="Write `sync = await GradientSync(…)` before the first gradient is computed",
            )
        if self._ending.pending:
            raise UsageError(
                "the last step may count, or not: its finish() was cancelled",
                hint="Call finish() again first: it says so, and gives the averages",
            )
        number = self._bucket_of.get(index)
        if number is None:
            raise UsageError(f"index {shown(index)} names none of the {len(self._values)} arrays")
        if index not in self._missing[number]:
            raise UsageError(
                f"gradient {index} is ready for the second time in this step",
                hint="Each gradient once a step; `await sync.finish()` ends a step",
            )
        gradient = view(grad, writable=False, what=f"gradient {index}")
        target = self._slices[index]
        if gradient.shape != target.shape or gradient.dtype != target.dtype:
            raise UsageError(
                f"gradient {index} is {gradient.dtype.name}{list(gradient.shape)}, "
                f"its array is {target.dtype.name}{list(target.shape)}",
            )
        copy_into(target, gradient)
        self._missing[number].remove(index)
        self._start_full_buckets()

    def _start_full_buckets(self) -> None:
        while len(self._works) < len(self._buckets) and not self._missing[len(self._works)]:
            memory = self._memory[len(self._works)]
            self._works.append(self._reduce(len(self._works), memory))

    def _reduce(self, number: int, memory: Array) -> Awaitable[Any]:
        """Start the average of a bucket."""
        if self._codec is None or memory.dtype not in FLOATS:
            return self.pg.all_reduce(memory, ReduceOp.AVG, async_op=True)
        feedback, agree_on = self._feedback[number], f"{self._plan} {number}"
        return self.pg.all_reduce_quantized(
            memory, ReduceOp.AVG, self._codec, feedback=feedback, agree_on=agree_on, async_op=True
        )

    async def finish(self) -> list[Any]:
        """End the step: wait for the averages.

        Cancelling it ends only the wait; call it again, before the next `ready`.

        Returns:
            The averages over all ranks, in the order and with the shapes of `arrays`, torch tensors
            where the array is one. They lie in the buckets: valid until the next `ready`. Elastic: an empty
            list where the members have changed; nothing counts of this step, on no rank: do it again. The
            arrays and `state` are then as they were before it.

        Raises:
            UsageError: some gradients are not ready; the step goes on, give them and call again. Or another
                task awaits the end of this step.
            NonFiniteValues: with a codec: some rank's gradients are not finite. All ranks raise it; the step
                is over, skip the update.
            GroupBroken: the group broke; gradients are lost. Elastic: only `Evicted` and `QuorumLost`.
        """
        if self._finishing:  # each would apply the averages
            raise UsageError(
                "finish() was called in another task", hint="One task has to await it in each step"
            )
        self._finishing = True
        try:
            return await self._finish()
        finally:
            self._finishing = False

    async def _finish(self) -> list[Any]:
        if self._ending.pending:  # an earlier call was cancelled
            return await self._ending.of(self._end)
        missing = sorted(set().union(*self._missing))
        if missing:
            names = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise UsageError(
                f"{len(missing)} of {len(self._values)} gradients are not ready: {names}",
                hint="Mark unused ones ready with zeros; all ranks must give all of them",
            )
        if self._elastic:
            return await self._ending.of(self._end)  # its agreement is part of it, also where it is cancelled
        return await self._end()

    async def _end(self) -> list[Any]:
        works = self._works
        if self._elastic and not await self._agreed(works):
            self._end_step(counts=False)
            await self._regroup()
            await self._share()
            return []
        bad = await _ended(works)
        self._end_step(counts=bad is None)
        self._reset()
        if bad is not None:
            raise bad
        return list(self._averages)

    def _end_step(self, counts: bool) -> None:
        """Keep what rounding has left out of this step, or go back where it does not count."""
        for feedback in self._feedback:
            if counts:
                feedback.keep()
            else:
                feedback.undo()

    async def _agreed(self, works: list[Awaitable[Any]]) -> bool:
        """Whether all members have the averages, and nobody waits to be admitted."""
        well = self.pg.rank != 0 or not await self.pg.newcomers_here()
        try:
            await _ended(works)
        except (Evicted, QuorumLost):
            raise
        except GroupBroken:
            well = False
        return await self.pg.agree(well)


async def _ended(works: list[Awaitable[Any]]) -> NonFiniteValues | None:
    """Wait for the end of all, also where the group breaks: a Work that has not ended uses its feedback.

    Returns:
        what is told of values that are not finite, alike on all ranks.

    Raises:
        GroupBroken: of the first Work that raises it.
    """
    bad = broken = None
    for work in works:
        try:
            await work
        except NonFiniteValues as error:
            bad = bad or error
        except GroupBroken as error:
            broken = broken or error
    if broken is not None:
        raise broken
    return bad
