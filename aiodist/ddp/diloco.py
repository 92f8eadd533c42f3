"""Training that communicates rarely: DiLoCo, its streaming form, and local SGD, over arrays.

Each rank trains by itself. After some steps all ranks average what they have moved, and an outer optimiser
moves the common values by it. Only that travels, once in `sync_every` steps.

Sources: A. Douillard et al., arXiv 2311.08105 (DiLoCo) and arXiv 2501.18512 (Streaming DiLoCo: fragments,
overlap, quantised outer gradients).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Coroutine, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays import renewal, view
from aiodist.backends.arrays.kernels import copy_into
from aiodist.backends.work import Work
from aiodist.base.errors import (
    CheckpointError,
    Evicted,
    GroupBroken,
    NonFiniteValues,
    QuorumLost,
    UsageError,
    shown,
)
from aiodist.base.types import FLOATS, ReduceOp
from aiodist.ddp.arguments import listed, number
from aiodist.ddp.awaited import each_awaited
from aiodist.ddp.holders import first_holder, is_newcomer, is_orphan, misfit, note_values
from aiodist.ddp.outer import Common, Outer
from aiodist.ddp.rhythm import Rhythm, parts
from aiodist.group import ErrorFeedback, ProcessGroup
from aiodist.group.arguments import at_least_1, integer
from aiodist.group.quantized import codec_named

logger = logging.getLogger("aiodist.ddp.diloco")

Array = npt.NDArray[Any]
_LOADED = 2  # in a row: of a newcomer that has loaded its values itself; 1: it has common values, 0: none
_STEP_NS, _SIGN_NS = 2.0, 8.0  # of an element: of the outer step, and of its digest


class DiLoCo:
    """Ranks that train by themselves, and agree on common values once in a while.

    Construction checks the arguments. Await the object once: all ranks then have rank 0's values. After each
    step of your own optimiser call `step`::

        diloco = await dist.DiLoCo(pg, weights, sync_every=100)
        for batch in batches:
            train(weights, batch)  # any optimiser; it keeps its state
            await diloco.step()

    The arrays are written in place. Where they cannot be written (JAX) take the new ones: `diloco.arrays` at
    the beginning, and then `weights = await diloco.step(weights)`.

    With `fragments` each part of the model is exchanged at a time of its own, and with `delay` the program
    goes on computing meanwhile. Nothing is sent while the event loop is blocked, so run long steps in a
    thread: `await asyncio.to_thread(train, weights, batch)`.

    An exchange counts only if all members have its result: they vote in the epoch in which it was made. With
    `elastic=True` those that are left make it again when a member has died, with what they have moved: no
    step is lost. Newcomers (`dist.join`) are taken in after an exchange, or by `admit`, and get the common
    values. After each exchange all ranks compare a digest of the common values; a rank with others gets those
    of the majority.

    Args:
        pg: the process group; elastic: a world.
        arrays: the model's values: writable NumPy arrays or torch CPU tensors, or JAX arrays; real floating.
        sync_every: steps in which each fragment is exchanged once.
        fragments: into how many the arrays are dealt out, or the indices of each one's arrays.
        delay: steps from the beginning of an exchange until its result is applied.
        mix: how much of a rank's own values is kept when a result is applied, from 0 to 1; for `delay` > 0.
        outer_lr, outer_momentum, nesterov: of the outer optimiser, SGD.
        codec: 'int8' or 'int4': what ranks have moved travels quantised, with error feedback.
        elastic: go on when members die or join.
        admit: elastic: take newcomers in after each exchange; else only when `admit()` is called.
        state: what else newcomers must have alike: writable arrays, any dtype.
        min_size: elastic: with fewer members training ends by `QuorumLost`.

    Attributes:
        pg: the group; another one after each change.
        arrays: those of the constructor, or, where they cannot be written, the newest in their place.
        steps: that were counted.
        exchanges: that count.
        repairs: how often this rank got the majority's common values, since its own were others.

    Raises:
        UsageError: an array cannot be averaged, or numbers do not fit each other.
    """

    def __init__(
        self,
        pg: ProcessGroup,
        arrays: Iterable[Any],
        *,
        sync_every: int = 500,
        fragments: int | Sequence[Sequence[int]] = 1,
        delay: int = 0,
        mix: float = 0.0,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        codec: str | None = None,
        elastic: bool = False,
        admit: bool = True,
        state: Iterable[Any] = (),
        min_size: int = 1,
    ) -> None:
        if elastic:
            pg.check_rebuild()
        mix = number(mix, "mix", 0, 1)
        every = at_least_1(sync_every, "sync_every")
        outer = Outer(
            number(outer_lr, "outer_lr"), number(outer_momentum, "outer_momentum", 0, 1), bool(nesterov)
        )
        self.pg = pg
        self.steps = self.exchanges = self.repairs = 0
        self._arrays = listed(arrays, "arrays", type(self).__name__)
        self._renewals = [renewal(array) for array in self._arrays]
        views = self._views()
        self._parts = _dealt(fragments, [one.size for one in views])
        self._rhythm = Rhythm(every, len(self._parts), integer(delay, "delay"))
        self._commons = [Common(*_flat_of([views[i] for i in part]), outer) for part in self._parts]
        self._feedback = [ErrorFeedback() for _ in self._parts]
        self._codec = None if codec is None else codec_named(codec).name
        self._mix, self._elastic, self._admit, self._min_size = mix, elastic, admit, min_size
        self._state = [
            view(one, writable=True, what=f"state[{i}]")
            for i, one in enumerate(listed(state, "state", type(self).__name__))
        ]
        shapes = [(one.dtype.name, one.shape) for one in (*views, *self._state)]
        plan = f"{shapes} {self._parts} {self._rhythm} {outer} {mix} {self._codec} {elastic} {admit}"
        self._plan = int.from_bytes(hashlib.blake2b(plan.encode(), digest_size=8).digest(), "little")
        self._known = False  # this rank has common values
        self._came = elastic and is_newcomer(pg)  # and has not met the members yet
        self._moved: Array | None = None
        self._under_way: Work[Any] | None = None
        self._busy = False

    @property
    def arrays(self) -> list[Any]:
        """This rank's values, as they are now."""
        return list(self._arrays)

    def _views(self) -> list[Array]:
        """The ranks' own values as arrays."""
        views = []
        for index, (array, renew) in enumerate(zip(self._arrays, self._renewals, strict=True)):
            one = view(array, writable=renew is None, what=f"arrays[{index}]")
            if one.dtype not in FLOATS:
                raise UsageError(f"arrays[{index}] is {one.dtype.name}: pass real floating arrays")
            views.append(one)
        return views

    # ── the beginning ────────────────────────────────────────────────────────────────────────────────

    async def synced(self) -> None:
        """Wait until this rank has the common values. `await diloco` does this and gives `diloco`."""
        if not self._known or self._came:
            self._check_idle("Await it")
            await self._alone(self._reconcile(self._admit))

    def __await__(self) -> Generator[Any, None, DiLoCo]:
        yield from self.synced().__await__()
        return self

    # ── each step ────────────────────────────────────────────────────────────────────────────────────

    @each_awaited
    async def step(self, values: Iterable[Any] | None = None) -> list[Any]:
        """Count a step of this rank; begin and apply the exchanges that are due.

        Args:
            values: the present values, where they cannot be written in place.

        Returns:
            the arrays: those of the constructor, or new ones in place of what cannot be written.

        Raises:
            UsageError: the step before is under way; this one is not counted.
            NonFiniteValues: some rank has moved to values that are not finite. All ranks raise it; the common
                values are as before.
            GroupBroken: the group broke. Elastic: only `Evicted` and `QuorumLost`.
        """
        if not self._known or self._came:
            raise UsageError(
                "this rank may not have the common values yet", hint="Write `diloco = await DiLoCo(…)` first"
            )
        self._check_idle("Count the next one")
        self._take(values)
        self.steps += 1
        begins, applies = self._rhythm.begins(self.steps), self._rhythm.applies(self.steps)
        if begins is not None or applies is not None:
            await self._alone(self._exchanges(begins, applies))  # a half of them would be no step at all
        return list(self._arrays)

    async def _alone(self, steps: Coroutine[Any, Any, None]) -> None:
        """Do what changes common values, to its end; nothing else may use them meanwhile."""
        self._busy = True
        try:
            await self.pg.together(steps)
        finally:  # they have ended, also where this await was cancelled
            self._busy = False

    def _check_idle(self, what: str) -> None:
        if self._busy:
            raise UsageError("a step, or an await of it, is under way", hint=f"{what} after that")

    async def _exchanges(self, begins: int | None, applies: int | None) -> None:
        if begins is not None:
            await self._begin(begins)
        if applies is not None and self._under_way is not None:
            await self._apply(applies)

    def _take(self, values: Iterable[Any] | None) -> None:
        if values is None:
            if any(renew is not None for renew in self._renewals):
                raise UsageError(
                    "these arrays cannot be written", hint="Write `weights = await diloco.step(weights)`"
                )
            return
        taken = list(values)
        if len(taken) != len(self._arrays):
            raise UsageError(f"{len(taken)} values for {len(self._arrays)} arrays")
        before = [one.shape for one in self._views()]
        kept, self._arrays = self._arrays, taken
        try:
            if [one.shape for one in self._views()] != before:
                raise UsageError("the values have other shapes than the arrays")
        except UsageError:
            self._arrays = kept
            raise

    async def _begin(self, fragment: int) -> None:
        """Start the exchange of what this rank has moved in a fragment."""
        common, part = self._commons[fragment], self._parts[fragment]
        moved = np.empty_like(common.values)

        def work_out() -> None:
            views = self._views()
            _gather([views[index] for index in part], moved)
            common.moved(moved)

        await self.pg._core.apart(_STEP_NS * moved.size, work_out)
        self._moved = moved
        self._under_way = self._exchange(fragment)

    def _exchange(self, fragment: int) -> Work[Any]:
        moved = self._moved
        assert moved is not None
        out = np.empty_like(moved)
        if self._codec is None:
            work = self.pg.all_reduce(moved, ReduceOp.AVG, out, async_op=True)
        else:
            work = self.pg.all_reduce_quantized(
                *(moved, ReduceOp.AVG, self._codec, out),
                feedback=self._feedback[fragment],
                agree_on=f"DiLoCo {self._plan:x} fragment {fragment}",
                async_op=True,
            )
        work._forget_failure()  # a program that ends before it is applied does not need it
        return work

    async def _apply(self, fragment: int) -> None:
        """Apply an exchange that all members have; then compare the common values, and take newcomers in."""
        mean, bad = await self._result(fragment)
        self._moved = self._under_way = None
        common, part = self._commons[fragment], self._parts[fragment]

        def outer_step() -> None:
            nonlocal bad
            if not bool(np.isfinite(mean).all()):
                bad = NonFiniteValues("a rank has moved to values that are not finite")
                return
            common.step(mean)
            common.sign()
            self._write(part, common, self._mix)

        if bad is None:
            await self.pg._core.apart((_STEP_NS + _SIGN_NS) * mean.size, outer_step)
        feedback = self._feedback[fragment]
        if bad is not None:
            feedback.undo()
            raise bad
        feedback.keep()
        self.exchanges += 1
        await self._reconcile(self._admit)

    async def _result(self, fragment: int) -> tuple[Array, NonFiniteValues | None]:
        """The average of an exchange that counts. Elastic: it is made again where it does not."""
        while True:
            assert self._under_way is not None
            mean, bad, well = np.empty(0), None, True
            try:
                mean = await self._under_way
            except NonFiniteValues as error:
                bad = error
            except GroupBroken as error:
                self._check(error)
                well = False
            if not self._elastic or await self.pg.agree(well):
                return mean, bad
            self._feedback[fragment].undo()
            await self._rebuild(False)
            await self._reconcile(False)
            self._under_way = self._exchange(fragment)

    async def admit(self) -> int:
        """Take newcomers in that wait; they get the common values. All members call it after the same step.

        Returns:
            how many came.

        Raises:
            UsageError: a step or an exchange is under way, or the members never change.
        """
        if not self._elastic:
            raise UsageError("only with elastic=True newcomers can come")
        if self._under_way is not None:
            raise UsageError("an exchange is under way", hint="Call it after the step that applies it")
        self._check_idle("Take newcomers in")
        before = self.pg.size
        await self._alone(self._take_in())
        return max(0, self.pg.size - before)

    async def _take_in(self) -> None:
        if not await self.pg.agree(not await self._newcomers()):
            await self._rebuild(True)
            await self._reconcile(False)

    # ── the common values ────────────────────────────────────────────────────────────────────────────

    async def _reconcile(self, admit: bool) -> None:
        """Have all members the same common values: those of the majority, of rank 0 at the very beginning.

        Elastic: it ends on all members in the same epoch, by an agreement, so that what a program does after
        it is the same on all of them.

        Args:
            admit: take newcomers in that wait now.
        """
        asks = admit and self._elastic
        while True:
            well = True
            try:
                well = await self._compare() and not (asks and await self._newcomers())
            except GroupBroken as error:
                self._check(error)
                well = False
            if not self._elastic or await self.pg.agree(well):
                return
            asks = False  # once: one that cannot come in keeps nobody from going on
            await self._rebuild(admit)

    async def _compare(self) -> bool:
        """Compare what all members have, and have it the same → False: a newcomer cannot take part, and
        leaves."""
        progress = (self.exchanges, self.steps) if self._known else (0, 0)
        has = _LOADED if self._came and self._known else int(self._known)
        orphan = self._elastic and is_orphan(self.pg)
        row = np.array([has, self._plan, *progress, self._digest(), int(orphan)], np.uint64)
        rows = _counted([tuple(map(int, one)) for one in await self.pg.all_gather(row)])
        mine, self._came = rows[self.pg.rank], False
        self._known = mine[0] > 0
        if not self._check_plans(rows):
            return False
        first_holder([row[0] > 0 for row in rows], [row[-1] > 0 for row in rows])  # it raises, else
        source = source_of([row[:-1] for row in rows])
        if source is not None:
            await self._take_over(source, differs=rows[source][:-1] != mine[:-1])
        if self._elastic:
            note_values(self.pg)
        return True

    def _digest(self) -> int:
        """Of the common values of all fragments."""
        digests = b"".join(one.digest.to_bytes(8, "little") for one in self._commons)
        return int.from_bytes(hashlib.blake2b(digests, digest_size=8).digest(), "little")

    def _check_plans(self, rows: Sequence[tuple[int, ...]]) -> bool:
        """Whether all members have this rank's plan.

        Raises:
            UsageError: this rank has another plan than the members that have the common values.
        """
        member = misfit([row[1] for row in rows], [row[0] > 0 for row in rows], self.pg.rank)
        if member is not None:
            raise UsageError(
                f"rank {self.pg.ranks[member]} has other arrays, or another plan, than rank "
                f"{self.pg.ranks[self.pg.rank]}",
                hint="Construct DiLoCo with the same shapes and arguments on all ranks",
            )
        return all(plan == self._plan for _, plan, *_ in rows)

    async def _take_over(self, source: int, differs: bool) -> None:
        """Send the source's common values to all. Whoever has them already gets the same bytes again.

        Elastic: where that fails, a rank with other ones has these as they were: it may be the next source.
        """
        begins = not self._known and source == self.pg.rank
        if begins:  # the very beginning: rank 0's own values become the common ones
            for common, part in zip(self._commons, self._parts, strict=True):
                views = self._views()
                _gather([views[index] for index in part], common.values)
        counts = np.array([self.exchanges, self.steps], np.int64)
        state = [array.copy() for array in self._state]
        kept = [array for one in self._commons for array in (one.values, one.velocity)]
        apart = self._elastic and self.pg.rank != source and (differs or not self._known)
        arriving = [np.empty_like(array) for array in kept] if apart else kept
        works = [self.pg.broadcast(one, source, async_op=True) for one in (counts, *arriving, *state)]
        for work in works:
            await work

        def take() -> None:
            if apart:
                for array, arrived in zip(kept, arriving, strict=True):
                    copy_into(array, arrived)
            for common in self._commons:
                common.sign()

        elements = sum(one.values.size for one in self._commons)
        await self.pg._core.apart(_SIGN_NS * elements, take)
        if differs or not self._known:
            if self._known:
                self.repairs += 1
                logger.warning(
                    "rank %d had other common values after exchange %d: it has those of rank %d now",
                    *(self.pg.ranks[self.pg.rank], self.exchanges, self.pg.ranks[source]),
                )
            self.exchanges, self.steps = map(int, counts)  # which fragment is next follows from them
            for array, arrived in zip(self._state, state, strict=True):
                copy_into(array, arrived)
            if not begins:
                for common, part in zip(self._commons, self._parts, strict=True):
                    self._write(part, common, 0.0)
        self._known = True

    def _write(self, part: Sequence[int], common: Common, mix: float) -> None:
        """Write a fragment's common values into this rank's arrays, mixed with its own."""
        views, at = self._views(), 0
        for index in part:
            own = views[index]
            values = common.values[at : at + own.size].reshape(own.shape)
            at += own.size
            if mix:
                values = (1 - mix) * values + mix * own.astype(values.dtype)
            renew = self._renewals[index]
            if renew is None:
                copy_into(own, values.astype(own.dtype))
            else:
                self._arrays[index] = renew(np.array(values.astype(own.dtype)))

    # ── changes of members ───────────────────────────────────────────────────────────────────────────

    def _check(self, error: GroupBroken) -> None:
        if not self._elastic or isinstance(error, Evicted | QuorumLost):
            raise error

    async def _newcomers(self) -> bool:
        """Whether newcomers wait; rank 0 alone knows, and tells the others by its vote."""
        return self.pg.rank == 0 and bool(await self.pg.newcomers_here())

    async def _rebuild(self, admit: bool) -> None:
        """Go on with the members that are left, and, if all say so, with newcomers."""
        self.pg = await self.pg.rebuild(self._min_size, admit=admit)

    # ── what is saved ────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint keeps beside the arrays and your own optimiser's: copies.

        Everything but 'feedback' is the same on all ranks.
        """
        self._check_idle("Save")
        if self._under_way is not None:
            raise UsageError("an exchange is under way", hint="Save it after the step that applies it")
        return {
            "steps": self.steps,
            "exchanges": self.exchanges,
            "values": [one.values.copy() for one in self._commons],
            "velocity": [one.velocity.copy() for one in self._commons],
            "feedback": [None if one.error is None else one.error.copy() for one in self._feedback],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from `state_dict`, on all ranks, before the first `await diloco`.

        What a newcomer loads before that counts for nothing where members have common values.

        Args:
            saved: 'feedback' may be None, where a group of another size saved it: nothing is left over then.

        Raises:
            UsageError: a step or an exchange is under way.
            CheckpointError: it is of other arrays. Nothing has changed.
        """
        self._check_idle("Load")
        if self._under_way is not None:
            raise UsageError("an exchange is under way", hint="Load before the first `await diloco`")
        kept = [array for one in self._commons for array in (one.values, one.velocity)]
        given = [array for pair in zip(saved["values"], saved["velocity"], strict=True) for array in pair]
        shapes = [np.shape(array) for array in given]
        errors = [None] * len(self._feedback) if saved["feedback"] is None else list(saved["feedback"])
        if shapes != [array.shape for array in kept] or len(errors) != len(self._feedback):
            raise CheckpointError(
                "what was saved is of other arrays, or other fragments", hint="Pass the arguments of then"
            )
        for array, values in zip(kept, given, strict=True):
            array[...] = values
        for common in self._commons:
            common.sign()
        for feedback, error in zip(self._feedback, errors, strict=True):
            feedback.error = None if error is None else np.array(error, np.float32)
        self.steps, self.exchanges = int(saved["steps"]), int(saved["exchanges"])
        self._known = True


class LocalSGD(DiLoCo):
    """Ranks that train by themselves, and average their values once in `sync_every` steps.

    It is DiLoCo with an outer rate of 1 and no momentum. Arguments as there.
    """

    def __init__(self, pg: ProcessGroup, arrays: Iterable[Any], *, sync_every: int = 8, **more: Any) -> None:
        for name in ("outer_lr", "outer_momentum", "nesterov"):
            if name in more:
                raise UsageError(f"LocalSGD has no {name}", hint="Use DiLoCo")
        super().__init__(
            pg, arrays, sync_every=sync_every, outer_lr=1.0, outer_momentum=0.0, nesterov=False, **more
        )


def source_of(rows: Sequence[tuple[int, ...]]) -> int | None:
    """The member whose common values all get; None: all have the same. Pure.

    It is the first of the majority of those that are furthest: no number of members with an older state,
    from a checkpoint say, has the others go back.

    Args:
        rows: of each member: 1 where it has common values, its plan, exchanges and steps, and what tells
            its values apart.
    """
    known = [row for row in rows if row[0]]
    if not known:
        return 0
    if len(set(rows)) == 1:
        return None
    furthest = [row for row in known if row[2:4] == max(one[2:4] for one in known)]
    most = max(furthest, key=lambda row: (furthest.count(row), -furthest.index(row)))
    return rows.index(most)


def _counted(rows: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The rows, without what newcomers loaded before they met members with common values. Pure."""
    has = int(all(row[0] != 1 for row in rows))  # of those that have loaded
    return [(has, row[1], *row[2:]) if row[0] == _LOADED else row for row in rows]


def _dealt(fragments: int | Sequence[Sequence[int]], sizes: Sequence[int]) -> list[list[int]]:
    """The indices of each fragment's arrays."""
    if not isinstance(fragments, list | tuple):
        return parts(sizes, at_least_1(fragments, "fragments"))
    chosen = [list(part) for part in fragments]
    if sorted(index for part in chosen for index in part) != list(range(len(sizes))) or not all(chosen):
        raise UsageError(
            f"fragments={shown(fragments)} must have each of the {len(sizes)} arrays' indices once"
        )
    return chosen


def _flat_of(views: Sequence[Array]) -> tuple[int, np.dtype[Any]]:
    """Elements of a fragment, and the dtype in which its common values are kept."""
    wide = any(one.dtype == np.float64 for one in views)
    return sum(one.size for one in views), np.dtype(np.float64 if wide else np.float32)


def _gather(views: Sequence[Array], flat: Array) -> None:
    """Copy arrays into one."""
    at = 0
    for one in views:
        flat[at : at + one.size].reshape(one.shape)[...] = one
        at += one.size
