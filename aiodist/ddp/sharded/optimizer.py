"""Data-parallel training in which each rank keeps the optimiser's state of its share of the model: ZeRO-1."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays import view
from aiodist.backends.arrays.kernels import copy_cost_ns, copy_into
from aiodist.backends.work import Work
from aiodist.base.errors import (
    Evicted,
    GroupBroken,
    NonFiniteValues,
    QuorumLost,
    StateLost,
    UsageError,
    shown,
)
from aiodist.base.types import ReduceOp
from aiodist.ddp.arguments import check_disjoint, number
from aiodist.ddp.awaited import each_awaited
from aiodist.ddp.buckets import cap_of
from aiodist.ddp.holders import is_newcomer, is_orphan, note_values
from aiodist.ddp.sharded import resharding, state_dict
from aiodist.ddp.sharded.model import Model, apart
from aiodist.ddp.sharded.options import Options, differing, digest
from aiodist.ddp.sharded.shares import Shares
from aiodist.ddp.sharded.updates import parameter_groups, update_of
from aiodist.group import ProcessGroup
from aiodist.group.arguments import integer

Array = npt.NDArray[Any]
T = TypeVar("T")
_UPDATE_NS = 4.0  # of an element
_BLOCK = 1 << 16  # elements whose squares are added up at once


@dataclass
class _Met:
    """The result of a meeting of all members; it counts when all of them have it."""

    shares: Shares
    steps: int
    history: str
    options: list[dict[str, Any]]
    commons: list[Array]
    missing: int = 0  # elements whose state nobody has
    restored: bool = False  # `restore` was called in it


class ShardedOptimizer:
    """An optimiser over a group: gradients are averaged, each rank updates its share, and all get the values.

    It replaces `GradientSync` or `DistributedDataParallel` together with the optimiser. Each rank keeps the
    optimiser's state (momentum, variance) of its share of the elements only, so that of W ranks each needs a
    W-th of that memory. Construction checks the arguments; await the object once: all ranks then have rank
    0's values::

        optimizer = await dist.ShardedOptimizer(pg, model.parameters(), torch.optim.AdamW, lr=1e-3)
        for batch in batches:
            loss_of(model(batch)).backward()
            await optimizer.step()
            optimizer.zero_grad()

    Over arrays the optimiser is a function that changes values in place, and keeps what it likes in a dict.
    It makes each entry at its first call, also for a gradient of zeros::

        def momentum(values, gradient, state):
            velocity = state.setdefault("velocity", np.zeros_like(values))
            velocity *= 0.9
            velocity += gradient
            values -= 0.1 * velocity

        optimizer = await dist.ShardedOptimizer(pg, weights, momentum)
        weights = await optimizer.step(gradients)

    Gradients travel as reduce_scatters of buckets, and new values as all_gathers: together the bytes of one
    all_reduce. The optimiser works on flat pieces, so it must treat each element for itself, as SGD and Adam
    do; for one that looks at shapes (Adafactor, Muon) pass `whole=True`.

    With `elastic=True` members may die and newcomers join. A step counts on all members or on none; where it
    does not, `step` returns an empty list, and is to be done again: `steps` says which one. The share of a
    member that died is gone with it, unless `redundancy` ranks keep a copy: then it goes on as if nothing had
    happened. Else `StateLost` is raised, or, where there is one, `restore` is called: the step in which it is
    called does not count, whenever in it the member died.

    Args:
        pg: the process group; elastic: a world.
        parameters: torch CPU parameters, or parameter groups as torch's optimisers take them; those without
            requires_grad are only kept alike. Or arrays: writable NumPy arrays or JAX arrays. Real floating.
        optimizer: a class of `torch.optim`, or a function `(values, gradient, state)` over NumPy arrays.
        whole: an array belongs to one rank as a whole; the optimiser gets it in its shape. Shares are less
            even then, and nothing travels before `step`.
        max_norm: the limit of the norm of all gradients together; they are scaled down to it.
        redundancy: how many other ranks hold a copy of each share. They do its updates, too, and are sent its
            gradients: as many members may die at once, and no state is lost.
        elastic: go on when members die or join.
        restore: an async function that is called with the optimiser where no member has its state: at the
            very beginning, and after `StateLost`. It may load a checkpoint. All members call it.
        state: what else all members must have alike, newcomers too: writable arrays, any dtype.
        min_size: elastic: with fewer members training ends by `QuorumLost`.
        bucket_cap_mb: size at which a bucket is closed, in MiB.
        **defaults: arguments of torch's class: lr=…, weight_decay=….

    Attributes:
        pg: the group; another one after each change.
        steps: that count.
        optimizer: torch's optimiser of this rank's pieces, for learning rate schedulers; or the function.
        norm: of the gradients of the last step; with `max_norm`.

    Raises:
        UsageError: an array cannot be averaged, or the optimiser cannot work on pieces.
    """

    def __init__(
        self,
        pg: ProcessGroup,
        parameters: Iterable[Any],
        optimizer: Any,
        *,
        whole: bool = False,
        max_norm: float | None = None,
        redundancy: int = 0,
        elastic: bool = False,
        restore: Callable[[ShardedOptimizer], Awaitable[object]] | None = None,
        state: Iterable[Any] = (),
        min_size: int = 1,
        bucket_cap_mb: float = 25,
        **defaults: Any,
    ) -> None:
        if elastic:
            pg.check_rebuild()
        if hasattr(parameters, "shape"):
            raise UsageError(
                "parameters is a single array", hint="Pass a list: ShardedOptimizer(pg, [weights])"
            )
        copies = integer(redundancy, "redundancy")
        if copies < 0:
            raise UsageError(f"redundancy must be at least 0, got {shown(redundancy)}")
        self.pg, self.steps, self.norm = pg, 0, math.nan
        given, groups = parameter_groups(parameters)
        self._model = model = Model(given, bool(whole), copies, cap_of(bucket_cap_mb))
        self._max_norm = None if max_norm is None else number(max_norm, "max_norm")
        placed = [(more, [model.place[i] for i in chosen if i in model.place]) for more, chosen in groups]
        self._elastic, self._min_size, self._restore = bool(elastic), min_size, restore
        self._update = update_of(
            optimizer,
            [given[index] for index in model.trained],
            placed,
            defaults,
            model.whole,
        )
        self.optimizer = self._update.optimizer
        frozen = [one for i, one in enumerate(given) if i not in model.place]
        self._common = [
            view(one, writable=True, what=f"state[{i}]") for i, one in enumerate([*frozen, *state])
        ]
        check_disjoint([*model.written(), *((f"state[{i}]", one) for i, one in enumerate(self._common))])
        others = [(one.dtype.name, one.shape) for one in self._common]
        plan = f"{state_dict.shapes_of(model)} {others} {self._update.name} {self._update.options}"
        plan += f" {model.buckets} {model.whole} {self._max_norm} {copies} {self._elastic}"
        plan += f" {restore is not None} {[places for _, places in placed]}"
        self._plan = hashlib.blake2b(plan.encode(), digest_size=8).hexdigest()
        self._held = False  # this rank has its share of a state
        self._synced = False  # all ranks have the same values
        self._lost = False  # nobody has the state of some elements any more
        self._missing_elements = 0  # of how many, where that was raised
        self._came = self._elastic and is_newcomer(pg)  # and has not met the members yet
        self._complete = True  # the arrays hold what the pieces hold; not within a step, and after a load
        self._loaded = False
        self._history = _new_history()
        self._busy = self._restoring = False
        self._changes = 0  # of what `state_dict` gives: begun and ended ones
        self._begin()
        self._shares = model.shares(pg.rank, pg.empty)
        self._update.place(self._shares.pieces)

    def _begin(self) -> None:
        """Make buckets in the group's memory."""
        self._model.begin(self.pg)
        self._reset()

    def _reset(self) -> None:
        """Begin a step: no gradient is here."""
        self._missing = [{slot.index for slot in bucket.slots} for bucket in self._model.buckets]
        self._works: list[Work[Any]] = []

    # ── the beginning ────────────────────────────────────────────────────────────────────────────────

    async def synced(self) -> None:
        """Wait until this rank has the common values. `await optimizer` does this and gives `optimizer`.

        Raises:
            StateLost: no member has the state of some elements: load a checkpoint, on all members.
        """
        if not self._synced:
            self._check_idle("Await it")
            await self._alone(self._reconcile())

    def __await__(self) -> Generator[Any, None, ShardedOptimizer]:
        yield from self.synced().__await__()
        return self

    # ── each step ────────────────────────────────────────────────────────────────────────────────────

    def ready(self, index: int, gradient: Any) -> None:
        """Pass one gradient early: its bucket is on its way when it is full, while you compute the others.

        The gradient is copied, so you may change it when this returns. Copying takes the loop about 0.1 ms
        for each MiB. With torch this does it in the backward pass::

            for i, p in enumerate(parameters):
                p.register_post_accumulate_grad_hook(lambda p, i=i: optimizer.ready(i, p.grad))

        Args:
            index: of the array in `parameters`.
            gradient: of its shape and dtype.

        Raises:
            UsageError: it does not fit, or was given already.
        """
        self._check_synced()
        self._check_idle("Give gradients")
        place = self._model.place.get(index)
        if place is None:
            raise UsageError(f"index {shown(index)} names no array that is trained")
        if place not in self._missing[self._model.bucket_of[place]]:
            raise UsageError(
                f"gradient {index} is ready for the second time in this step",
                hint="Each gradient once a step; `await optimizer.step()` ends a step",
            )
        copy_into(self._model.slices[place], self._checked(place, gradient))
        self._missing[self._model.bucket_of[place]].remove(place)
        self._start_full_buckets()

    @each_awaited
    async def step(self, gradients: Iterable[Any] | None = None) -> list[Any]:
        """Average the gradients over all ranks, update the values, and give them to all ranks.

        A cancelled step goes on to its end before it is cancelled: others depend on it.

        Args:
            gradients: of all arrays in order; None for those that `ready` was given, and for frozen ones.
                Without it the `.grad` of torch parameters.

        Returns:
            the arrays: those of the constructor, or new ones in place of what cannot be written; the step is
            in them, on all ranks. Elastic: an empty list where it is in none, because the members have
            changed; go on with the step that `steps` says, an earlier one after `restore`.

        Raises:
            UsageError: a gradient is missing, or does not fit, or an option of torch's optimiser is of a kind
                that newcomers cannot be given; nothing was sent for this call. On all ranks, where an option
                (lr, say) is not the same on all of them: nothing has changed. Elastic: also where members
                have changed, and pieces of an array have other entries of the state: all members raise it;
                load a state on all, and await the optimizer.
            NonFiniteValues: with `max_norm`: the gradients' norm is not finite. All ranks raise it; nothing
                has changed.
            StateLost: elastic: the state of some elements died with members.
            GroupBroken: the group broke; the values are undefined. Elastic: only `Evicted` and `QuorumLost`.
        """
        self._check_synced()
        self._check_idle("Begin the next one")
        options = self._update.options  # what newcomers cannot be given is refused before anything is sent
        return await self._alone(self._step(self._gradients(gradients), options))

    async def _alone(self, steps: Coroutine[Any, Any, T]) -> T:
        """Do what changes values and state, to its end; nothing else may use them meanwhile."""
        self._busy = True
        self._changes += 1
        try:
            return await self.pg.together(steps)
        finally:  # they have ended, also where this await was cancelled
            self._busy = False
            self._changes += 1

    def zero_grad(self) -> None:
        """Forget the `.grad` of all torch parameters."""
        for one in self._model.given:
            one.grad = None

    def _state_lost(self) -> StateLost:
        return StateLost(
            f"the optimizer's state of {self._missing_elements} elements died with the members that had it",
            hint="Load a checkpoint on all members and await the optimizer; redundancy=1 prevents it",
        )

    def _check_synced(self) -> None:
        if self._missing_elements:
            raise self._state_lost()  # again: the caller may have been cancelled in the step that lost it
        if not self._synced:
            raise UsageError(
                "this rank may not have the common values yet",
                hint="Write `await optimizer` first, also after a load (`optimizer.synced()` in the portal)",
            )

    def _check_idle(self, what: str) -> None:
        if self._busy:
            raise UsageError("a step, or an await of the optimizer, is under way", hint=f"{what} after it")

    def _checked(self, place: int, gradient: Any) -> Array:
        found = view(gradient, writable=False, what=f"gradient {self._model.trained[place]}")
        dtype, shape = self._model.forms[place]
        if found.shape != shape or found.dtype != dtype:
            raise UsageError(
                f"gradient {self._model.trained[place]} is {found.dtype.name}{list(found.shape)}, "
                f"its array is {dtype.name}{list(shape)}"
            )
        return found

    def _gradients(self, gradients: Iterable[Any] | None) -> dict[int, Array]:
        """The gradients that are not there yet, checked."""
        given = (
            [getattr(one, "grad", None) for one in self._model.given]
            if gradients is None
            else list(gradients)
        )
        if len(given) != len(self._model.given):
            raise UsageError(f"{len(given)} gradients for {len(self._model.given)} arrays")
        wanted = sorted(set().union(*self._missing))
        absent = [
            str(self._model.trained[place]) for place in wanted if given[self._model.trained[place]] is None
        ]
        if absent:
            names = ", ".join(absent[:10]) + (", …" if len(absent) > 10 else "")
            raise UsageError(
                f"{len(absent)} of {len(self._model.trained)} gradients are missing: {names}",
                hint="Give zeros for unused ones, or freeze them (requires_grad_(False)), on all ranks",
            )
        return {place: self._checked(place, given[self._model.trained[place]]) for place in wanted}

    def _start_full_buckets(self) -> None:
        while len(self._works) < len(self._model.buckets) and not self._missing[len(self._works)]:
            bucket = len(self._works)
            memory, mine = self._model.memory[bucket], self._shares.gradients[0][bucket]
            sizes = self._model.sizes(bucket)
            self._works.append(self.pg.reduce_scatter(memory, mine, ReduceOp.AVG, sizes, async_op=True))

    async def _step(self, gradients: Mapping[int, Array], options: Options) -> list[Any]:
        """Do a step, all of it, with these options."""
        well = not (self._elastic and self.pg.rank == 0 and await self.pg.newcomers_here())
        try:
            await self._fill(gradients)
            squares, alike = await self._reduced(options)
        except GroupBroken as error:
            self._check(error)
            well, squares, alike = False, 0.0, True
        if self._elastic and not await self.pg.agree(well):
            await self._regroup()
            return []
        self._reset()
        if not alike:
            raise await self._differing(options)
        scale = self._scale(squares)
        # From here on the step is done: members that go on alone end it, from what they hold. It counts
        # unless they have to go back to what was saved.
        shares, history = self._shares, self._history
        elements = sum(one.values.size for one in shares.pieces)

        def update() -> None:
            self._model.refresh(shares)
            if scale != 1.0:
                for one in shares.pieces:
                    one.gradient *= one.gradient.dtype.type(scale)
            self._update()
            shares.entries()  # what cannot be divided is refused at the first step

        await apart(self.pg, elements * _UPDATE_NS, update)
        self._complete = False
        before = self.steps
        self.steps += 1
        well = True
        try:
            try:
                await self._model.gather(self.pg, shares)
            except GroupBroken as error:
                self._check(error)
                well = False
            if self._elastic and not await self.pg.agree(well):
                await self._regroup(admit=False)  # a newcomer would not know what comes after a step
                if self._history != history:
                    return []
            else:
                await self._model.write(self.pg)
                self._complete = True
        except BaseException:  # it is in no array: a caller that was cancelled reads no more than `steps`
            self.steps = min(self.steps, before)
            raise
        return list(self._model.given)

    async def _fill(self, gradients: Mapping[int, Array]) -> None:
        """Copy gradients into buckets, and start each bucket when it is full."""
        for bucket in self._model.buckets:
            chosen = [slot.index for slot in bucket.slots if slot.index in gradients]

            def copy(chosen: Sequence[int] = chosen) -> None:
                for place in chosen:
                    copy_into(self._model.slices[place], gradients[place])

            nbytes = sum(gradients[place].nbytes for place in chosen)
            await apart(self.pg, copy_cost_ns(nbytes), copy)
            for place in chosen:
                self._missing[self._model.bucket_of[place]].discard(place)
            self._start_full_buckets()

    async def _reduced(self, options: Options) -> tuple[float, bool]:
        """Wait for this rank's gradients, and hand them to ranks with copies → sum of all squares; and
        whether all ranks have these options: each updates a share of one model."""
        names = self._update.compared
        mine = np.array([digest(options, names)], np.uint64)
        told = self.pg.all_gather(mine, async_op=True) if names else None
        works = self._works
        for work in works:
            await work
        runs, rank, size = self._shares.gradients, self.pg.rank, self.pg.size
        copies = []
        for back in range(1, len(runs)):
            for bucket, lengths in enumerate(self._model.partition.lengths):
                to, origin = (rank + back) % size, (rank - back) % size
                gives = [lengths[rank] if other == to else 0 for other in range(size)]
                takes = [lengths[origin] if other == origin else 0 for other in range(size)]
                copies.append(
                    self.pg.all_to_all(runs[0][bucket], runs[back][bucket], gives, takes, async_op=True)
                )
        squares = np.zeros(1)
        if self._max_norm is not None:

            def add() -> None:
                for run in runs[0]:
                    for at in range(0, run.size, _BLOCK):
                        some = run[at : at + _BLOCK].astype(np.float64)
                        squares[0] += some @ some

            await apart(self.pg, sum(run.size for run in runs[0]), add)
            await self.pg.all_reduce(squares)
        for copy in copies:
            await copy
        return float(squares[0]), told is None or bool((await told == mine).all())

    async def _differing(self, options: Options) -> UsageError:
        """The error that says which option is not the same on all ranks."""
        try:
            rows = await self.pg.all_gather_object(options)
        except GroupBroken as error:
            self._check(error)
            rows = []
        found = differing(dict(zip(self.pg.ranks, rows, strict=False)), self._update.compared)
        return found or UsageError("an option of a parameter group is not the same on all ranks")

    def _scale(self, squares: float) -> float:
        """The factor that brings the gradients to the limit of their norm.

        Raises:
            NonFiniteValues: their norm is not finite.
        """
        if self._max_norm is None:
            return 1.0
        self.norm = math.sqrt(squares) if math.isfinite(squares) else squares
        if not math.isfinite(squares):
            raise NonFiniteValues(f"the norm of all gradients is {squares}")
        return min(1.0, self._max_norm / (self.norm + 1e-6))

    # ── changes of members ───────────────────────────────────────────────────────────────────────────

    def _check(self, error: GroupBroken) -> None:
        if not self._elastic or isinstance(error, Evicted | QuorumLost):
            raise error

    async def _regroup(self, admit: bool = True) -> None:
        """Go on with the members that are left, and, if all say so, with newcomers."""
        self.pg = await self.pg.rebuild(self._min_size, admit=admit)
        await self._reconcile(admit)

    async def _reconcile(self, admit: bool = True) -> None:
        """Give each member its shares and all values, until all of them have them."""
        while True:
            met = None
            try:
                met = await self._meet()
            except GroupBroken as error:
                self._check(error)
            except UsageError:  # what the members have does not fit together, and stays as it is
                self._synced = False
                raise
            if self._elastic and not await self.pg.agree(met is not None):
                self.pg = await self.pg.rebuild(self._min_size, admit=admit)
                continue
            assert met is not None
            if not met.missing:
                break
            self._held = self._synced = False
            self._lost = True
            if self._restore is not None and not met.restored:
                continue  # nobody has a state now: `restore` is called
            self._missing_elements = met.missing
            raise self._state_lost()
        self._shares, self.steps, self._history = met.shares, met.steps, met.history
        if met.options:
            self._update.options = met.options
        self._update.place(self._shares.pieces)
        for array, arrived in zip(self._common, met.commons, strict=True):
            copy_into(array, arrived)
        await self._model.write(self.pg)
        self._held = self._synced = self._complete = True
        if self._elastic:
            note_values(self.pg)
        self._lost = self._loaded = False
        self._missing_elements = 0

    async def _meet(self) -> _Met | None:
        """Find out who has what, and make this rank's shares of it. Nothing changes but the buckets.

        Returns:
            None: a newcomer with another plan cannot take part, and leaves.
        """
        self._begin()
        rows = await self._rows()
        restored = self._restore is not None and not any(row["known"] for row in rows)
        if restored:
            await self._restored()
            rows = await self._rows()
        rows, self._came = resharding.counted(rows), False
        if not rows[self.pg.rank]["known"]:
            self._held = self._loaded = False
        if not resharding.check(rows, self.pg, self._update.compared):
            return None
        known = [member for member, row in enumerate(rows) if row["known"]]
        source = known[0] if known else 0
        steps, history = rows[source]["steps"], rows[source]["history"]
        self._lost = self._lost or (bool(known) and not self._held)  # until it is given here what others have
        commons = [array.copy() for array in self._common]
        works = [self.pg.broadcast(array, source, async_op=True) for array in commons]
        for work in works:
            await work
        model, shares = self._model, self._shares
        if not known and (any(row["lost"] for row in rows) or all(row["orphan"] for row in rows)):
            return _Met(shares, steps, history, [], commons, sum(model.counts), restored)
        if not resharding.in_place(rows, model):
            shares, missing = await resharding.resharded(
                self.pg, model, rows, source, shares, self._update.example
            )
            if missing:
                elements = sum(stop - start for _, start, stop in missing)
                return _Met(shares, steps, history, [], commons, elements, restored)
        elif self._loaded:
            shares = model.shares(self.pg.rank, self.pg.empty)  # where peers can read
            shares.take_over(self._shares)
        await model.gather(self.pg, shares)
        options = rows[source]["options"] if known else []
        return _Met(shares, steps, history, options, commons)

    async def _restored(self) -> None:
        """Have the program load what it saved. Where that fails, what was loaded does not count: the program
        has not done all that belongs to it, and `restore` is called again."""
        assert self._restore is not None
        self._restoring, lost, steps = True, self._lost, self.steps
        try:
            await self._restore(self)
        except BaseException:
            self._held, self._lost, self.steps = False, lost, steps
            raise
        finally:
            self._restoring = False

    async def _rows(self) -> list[resharding.Row]:
        """The row of each member (`resharding.Row`)."""
        if self._complete:
            nbytes = sum(run.nbytes for run in self._shares.values[0])
            await apart(self.pg, copy_cost_ns(nbytes), partial(self._model.refresh, self._shares))
        held = self._shares
        mine = {
            "known": self._held,
            "came": self._came,
            "lost": self._lost,
            "orphan": self._elastic and is_orphan(self.pg),
            "plan": self._plan,
            "steps": self.steps,
            "history": self._history,
            "loaded": self._loaded,
            # without a state this rank's arrays are all there is: one shard
            "size": held.size if self._held else 1,
            "shards": held.shards if self._held else [0],
            "entries": held.entries() if self._held else [],
            "options": self._update.options,
        }
        return await self.pg.all_gather_object(mine)

    # ── what is saved ────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """This rank's share of values and state, for `Checkpoints`: views, valid until the next step.

        Raises:
            UsageError: this rank has no values yet; or a step is under way.
        """
        self._check_synced()
        self._check_idle("Save")
        self._model.refresh(self._shares)
        return {
            "optimizer": self._update.name,
            "steps": self.steps,
            "options": self._update.options,
            "shapes": state_dict.shapes_of(self._model),
            "arrays": state_dict.kept(self._model, self._shares),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take this rank's share of what was saved, by however many ranks; then `await optimizer`, on all.

        Args:
            saved: of `Checkpoints.load`, or of `state_dict` of the same rank in a group of this size.

        Raises:
            CheckpointError: it is of other arrays, or of another optimiser. Nothing has changed.
            UsageError: a step is under way. (`restore` is called within one, and may load.)
        """
        if not self._restoring:
            self._check_idle("Load")
        state_dict.check(self._model, self._update.name, len(self._update.options), saved)
        shares = state_dict.restored(self._model, self.pg.rank, saved["arrays"], self._update.example)
        self._shares, self.steps = shares, int(saved["steps"])
        if saved["options"]:
            self._update.options = saved["options"]
        self._update.place(shares.pieces)
        self._history = _new_history()
        self._held = self._loaded = True
        self._synced = self._complete = self._lost = False
        self._missing_elements = 0


def _new_history() -> str:
    """A name for what happens to a state from now on: a state that was loaded, even of the same step, has
    another one, and the members take that of the state that they share."""
    return os.urandom(8).hex()
