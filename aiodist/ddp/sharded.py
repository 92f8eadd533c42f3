"""Data-parallel training in which each rank keeps the optimiser's state of its share of the model: ZeRO-1."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.ddp.arguments import number
from aiodist.ddp.buckets import cap_of
from aiodist.ddp.checkpoint.parts import Parts
from aiodist.ddp.checkpoint.tree import Some
from aiodist.ddp.entries import ELEMENTS, SCALAR, WHOLE, Entry, alike
from aiodist.ddp.partition import Move, Partition, buckets_of, moves, shards_of
from aiodist.ddp.shares import Shares, nbytes_of, same
from aiodist.ddp.updates import parameter_groups, update_of
from aiodist.errors import (
    CheckpointError,
    Evicted,
    GroupBroken,
    NonFiniteValues,
    QuorumLost,
    StateLost,
    UsageError,
    shown,
)
from aiodist.group import ProcessGroup
from aiodist.group.arguments import integer
from aiodist.kernels import copy_cost_ns, copy_into
from aiodist.tensors import renewal, view
from aiodist.tensors.device import torch_of
from aiodist.types import FLOATS, ReduceOp
from aiodist.work import Work

Array = npt.NDArray[Any]
_UPDATE_NS = 4.0  # of an element
_BLOCK = 1 << 16  # elements whose squares are added up at once


@dataclass
class _Met:
    """What members have found when they met: it counts when all of them have it."""

    shares: Shares
    steps: int
    options: list[dict[str, Any]]
    commons: list[Array]
    missing: int = 0  # elements whose state nobody has
    lost: bool = False  # members knew that before


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

    Over arrays the optimiser is a function that changes values in place, and keeps what it likes in a dict::

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
    does not, `step` returns an empty list, and is to be done again. The share of a member that died is gone
    with it, unless `redundancy` ranks keep a copy: then it goes on as if nothing had happened. Else
    `StateLost` is raised, or, where there is one, `restore` is called.

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
        self.pg, self.steps, self.norm = pg, 0, math.nan
        self._given, groups = parameter_groups(parameters)
        self._trained = [i for i, one in enumerate(self._given) if getattr(one, "requires_grad", True)]
        if not self._trained:
            raise UsageError("there is no parameter to train", hint="Pass parameters with requires_grad")
        place = {index: at for at, index in enumerate(self._trained)}
        self._place = place
        self._renewals = [renewal(self._given[index]) for index in self._trained]
        self._forms = [(one.dtype, one.shape) for one in self._views()]
        self._redundancy = integer(redundancy, "redundancy")
        if self._redundancy < 0:
            raise UsageError(f"redundancy must be at least 0, got {shown(redundancy)}")
        self._max_norm = None if max_norm is None else number(max_norm, "max_norm")
        self._whole, self._elastic, self._min_size = bool(whole), bool(elastic), min_size
        self._restore = restore
        self._update = update_of(
            optimizer,
            [self._given[index] for index in self._trained],
            [(options, [place[i] for i in chosen if i in place]) for options, chosen in groups],
            defaults,
            self._whole,
        )
        self.optimizer = self._update.optimizer
        frozen = [one for i, one in enumerate(self._given) if i not in place]
        self._common = [
            view(one, writable=True, what=f"state[{i}]") for i, one in enumerate([*frozen, *state])
        ]
        self._buckets = buckets_of(
            [(dtype, math.prod(shape)) for dtype, shape in self._forms], cap_of(bucket_cap_mb), self._whole
        )
        self._example = self._given[self._trained[0]]
        if torch_of(self._example):
            self._example = self._example.detach()
        self._plan = self._planned(elastic)
        self._held = False  # this rank has its share of a state
        self._synced = False  # all ranks have the same values
        self._lost = False  # nobody has the state of some elements any more
        self._complete = True  # the arrays hold what the pieces hold; not within a step, and after a load
        self._loaded = False
        self._begin()
        self._shares = self._empty_shares()
        self._update.place(self._shares.pieces)

    def _planned(self, elastic: bool) -> str:
        """A short text that all ranks must have alike."""
        forms = [(dtype.name, shape) for dtype, shape in self._forms]
        others = [(one.dtype.name, one.shape) for one in self._common]
        told = f"{forms} {others} {self._update.name} {self._update.options} {self._buckets} {self._whole}"
        told += f" {self._max_norm} {self._redundancy} {elastic} {self._restore is not None}"
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    def _views(self) -> list[Array]:
        """The values of the trained arrays, as arrays."""
        views = []
        for index, renew in zip(self._trained, self._renewals, strict=True):
            one = view(self._given[index], writable=renew is None, what=f"parameters[{index}]")
            if one.dtype not in FLOATS:
                raise UsageError(f"parameters[{index}] is {one.dtype.name}: pass real floating arrays")
            views.append(one)
        return views

    # ── memory ───────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        """Make buckets in the group's memory."""
        self._partition = Partition(self._buckets, self.pg.size, self._whole)
        self._memory = [
            self.pg.empty(sum(lengths), bucket.dtype)
            for lengths, bucket in zip(self._partition.lengths, self._buckets, strict=True)
        ]
        self._bucket_of: dict[int, int] = {}
        self._slices: dict[int, Array] = {}
        for number_, bucket in enumerate(self._buckets):
            self._memory[number_][bucket.count :] = 0
            for slot in bucket.slots:
                shape = self._forms[slot.index][1]
                self._slices[slot.index] = self._memory[number_][slot.start : slot.stop].reshape(shape)
                self._bucket_of[slot.index] = number_
        self._reset()

    def _reset(self) -> None:
        """Begin a step: no gradient is here."""
        self._missing = [{slot.index for slot in bucket.slots} for bucket in self._buckets]
        self._works: list[Work[Any]] = []

    def _empty_shares(self) -> Shares:
        """Memory for this rank's shares, where peers can read it."""
        return self._new_shares(self.pg.empty)

    def _new_shares(self, allocate: Callable[[int, np.dtype[Any]], Array]) -> Shares:
        mine = shards_of(self.pg.rank, self.pg.size, self._redundancy)
        dtypes = [bucket.dtype for bucket in self._buckets]
        return Shares(self._partition, mine, self._forms, dtypes, self._whole, allocate)

    async def _apart(self, nbytes: float, job: Callable[[], None]) -> None:
        """Do a job that may take long where it does not hold the loop. What it raises is raised here."""
        failed: list[Exception] = []

        def guarded() -> None:
            try:
                job()
            except Exception as error:  # of a user's function: it is no failure of the group
                failed.append(error)

        await self.pg._core.apart(copy_cost_ns(int(nbytes)), guarded)
        if failed:
            raise failed[0]

    # ── the beginning ────────────────────────────────────────────────────────────────────────────────

    async def synced(self) -> None:
        """Wait until this rank has the common values. `await optimizer` does this and gives `optimizer`.

        Raises:
            StateLost: no member has the state of some elements: load a checkpoint, on all members.
        """
        if not self._synced:
            await self.pg.together(self._reconcile())

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
        place = self._place.get(index)
        if place is None:
            raise UsageError(f"index {shown(index)} names no array that is trained")
        if place not in self._missing[self._bucket_of[place]]:
            raise UsageError(
                f"gradient {index} is ready for the second time in this step",
                hint="Each gradient once a step; `await optimizer.step()` ends a step",
            )
        copy_into(self._slices[place], self._checked(place, gradient))
        self._missing[self._bucket_of[place]].remove(place)
        self._start_full_buckets()

    async def step(self, gradients: Iterable[Any] | None = None) -> list[Any]:
        """Average the gradients over all ranks, update the values, and give them to all ranks.

        A cancelled step goes on to its end before it is cancelled: others depend on it.

        Args:
            gradients: of all arrays in order; None for those that `ready` was given, and for frozen ones.
                Without it the `.grad` of torch parameters.

        Returns:
            the arrays: those of the constructor, or new ones in place of what cannot be written. Elastic: an
            empty list where the members have changed; nothing counts of this step, do it again.

        Raises:
            UsageError: a gradient is missing, or does not fit; nothing was sent for this call.
            NonFiniteValues: with `max_norm`: the gradients' norm is not finite. All ranks raise it; nothing
                has changed.
            StateLost: elastic: the state of some elements died with members.
            GroupBroken: the group broke; the values are undefined. Elastic: only `Evicted` and `QuorumLost`.
        """
        self._check_synced()
        return await self.pg.together(self._step(self._gradients(gradients)))

    def zero_grad(self) -> None:
        """Forget the `.grad` of all torch parameters."""
        for one in self._given:
            one.grad = None

    def _check_synced(self) -> None:
        if not self._synced:
            raise UsageError(
                "this rank may not have the common values yet",
                hint="Write `await optimizer` first, also after a load",
            )

    def _checked(self, place: int, gradient: Any) -> Array:
        found = view(gradient, writable=False, what=f"gradient {self._trained[place]}")
        dtype, shape = self._forms[place]
        if found.shape != shape or found.dtype != dtype:
            raise UsageError(
                f"gradient {self._trained[place]} is {found.dtype.name}{list(found.shape)}, "
                f"its array is {dtype.name}{list(shape)}"
            )
        return found

    def _gradients(self, gradients: Iterable[Any] | None) -> dict[int, Array]:
        """The gradients that are not there yet, checked."""
        given = [getattr(one, "grad", None) for one in self._given] if gradients is None else list(gradients)
        if len(given) != len(self._given):
            raise UsageError(f"{len(given)} gradients for {len(self._given)} arrays")
        wanted = sorted(set().union(*self._missing))
        absent = [str(self._trained[place]) for place in wanted if given[self._trained[place]] is None]
        if absent:
            names = ", ".join(absent[:10]) + (", …" if len(absent) > 10 else "")
            raise UsageError(
                f"{len(absent)} of {len(self._trained)} gradients are missing: {names}",
                hint="Give zeros for unused ones, or freeze them (requires_grad_(False)), on all ranks",
            )
        return {place: self._checked(place, given[self._trained[place]]) for place in wanted}

    def _start_full_buckets(self) -> None:
        while len(self._works) < len(self._buckets) and not self._missing[len(self._works)]:
            bucket = len(self._works)
            memory, mine = self._memory[bucket], self._shares.gradients[0][bucket]
            sizes = self._partition.lengths[bucket] if self._whole else None
            self._works.append(self.pg.reduce_scatter(memory, mine, ReduceOp.AVG, sizes, async_op=True))

    async def _step(self, gradients: Mapping[int, Array]) -> list[Any]:
        """Do a step, all of it."""
        well = not (self._elastic and self.pg.rank == 0 and await self.pg.newcomers_here())
        try:
            await self._fill(gradients)
            squares = await self._reduced()
        except GroupBroken as error:
            self._check(error)
            well, squares = False, 0.0
        if self._elastic and not await self.pg.agree(well):
            await self._regroup()
            return []
        self._reset()
        scale = self._scale(squares)
        # From here on the step counts: members that go on alone end it, from what they hold.
        shares = self._shares
        elements = sum(one.values.size for one in shares.pieces)

        def update() -> None:
            self._refresh()
            if scale != 1.0:
                for one in shares.pieces:
                    one.gradient *= one.gradient.dtype.type(scale)
            self._update()
            shares.entries()  # what cannot be divided is refused at the first step

        await self._apart(elements * _UPDATE_NS * 8, update)
        self._complete = False
        self.steps += 1
        well = True
        try:
            await self._gather(shares)
        except GroupBroken as error:
            self._check(error)
            well = False
        if self._elastic and not await self.pg.agree(well):
            await self._regroup()
        else:
            await self._write()
        return list(self._given)

    async def _fill(self, gradients: Mapping[int, Array]) -> None:
        """Copy gradients into buckets, and start each bucket when it is full."""
        for bucket in self._buckets:
            chosen = [slot.index for slot in bucket.slots if slot.index in gradients]

            def copy(chosen: Sequence[int] = chosen) -> None:
                for place in chosen:
                    copy_into(self._slices[place], gradients[place])

            await self._apart(sum(gradients[place].nbytes for place in chosen), copy)
            for place in chosen:
                self._missing[self._bucket_of[place]].discard(place)
            self._start_full_buckets()

    async def _reduced(self) -> float:
        """Wait for this rank's gradients, and hand them to ranks with copies → sum of all squares."""
        works = self._works
        for work in works:
            await work
        mine, rank, size = self._shares.gradients, self.pg.rank, self.pg.size
        copies = []
        for back in range(1, len(mine)):
            for bucket, lengths in enumerate(self._partition.lengths):
                to, origin = (rank + back) % size, (rank - back) % size
                gives = [lengths[rank] if other == to else 0 for other in range(size)]
                takes = [lengths[origin] if other == origin else 0 for other in range(size)]
                copies.append(
                    self.pg.all_to_all(mine[0][bucket], mine[back][bucket], gives, takes, async_op=True)
                )
        squares = np.zeros(1)
        if self._max_norm is not None:

            def add() -> None:
                for run in mine[0]:
                    for at in range(0, run.size, _BLOCK):
                        some = run[at : at + _BLOCK].astype(np.float64)
                        squares[0] += some @ some

            await self._apart(sum(run.nbytes for run in mine[0]), add)
            await self.pg.all_reduce(squares)
        for copy in copies:
            await copy
        return float(squares[0])

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

    async def _gather(self, shares: Shares) -> None:
        """Give all ranks the values of all shares, in the buckets."""
        works = []
        for bucket, memory in enumerate(self._memory):
            sizes = self._partition.lengths[bucket] if self._whole else None
            works.append(self.pg.all_gather(shares.values[0][bucket], memory, sizes, async_op=True))
        for work in works:
            await work

    async def _write(self) -> None:
        """Write the buckets' values into the arrays."""
        views = self._views()

        def write() -> None:
            for place, renew in enumerate(self._renewals):
                if renew is None:
                    copy_into(views[place], self._slices[place])

        await self._apart(sum(memory.nbytes for memory in self._memory), write)
        for place, renew in enumerate(self._renewals):
            if renew is not None:
                self._given[self._trained[place]] = renew(np.array(self._slices[place]))
        self._complete = True

    def _refresh(self) -> None:
        """Read the pieces' values from the arrays, which the program may have changed."""
        views = self._views()
        for one in self._shares.pieces:
            copy_into(one.values, _flat(views[one.index])[one.start : one.stop].reshape(one.values.shape))

    # ── changes of members ───────────────────────────────────────────────────────────────────────────

    def _check(self, error: GroupBroken) -> None:
        if not self._elastic or isinstance(error, Evicted | QuorumLost):
            raise error

    async def _regroup(self) -> None:
        """Go on with the members that are left, and newcomers."""
        self.pg = await self.pg.rebuild(self._min_size)
        await self._reconcile()

    async def _reconcile(self) -> None:
        """Give each member its shares and all values, until all of them have them."""
        while True:
            met = None
            try:
                met = await self._meet()
            except GroupBroken as error:
                self._check(error)
            if not self._elastic or await self.pg.agree(met is not None):
                break
            self.pg = await self.pg.rebuild(self._min_size)
        assert met is not None
        if met.missing:
            self._held = self._synced = False
            first, self._lost = not met.lost, True
            if first and self._restore is not None:
                await self._reconcile()
                return
            raise StateLost(
                f"the optimizer's state of {met.missing} elements died with the members that had it",
                hint="Load a checkpoint on all members and await the optimizer; redundancy=1 prevents it",
            )
        self._shares, self.steps = met.shares, met.steps
        if met.options:
            self._update.options = met.options
        self._update.place(self._shares.pieces)
        for array, arrived in zip(self._common, met.commons, strict=True):
            copy_into(array, arrived)
        await self._write()
        self._held = self._synced = True
        self._lost = self._loaded = False

    async def _meet(self) -> _Met | None:
        """Find out who has what, and make this rank's shares of it. Nothing changes but the buckets.

        Returns:
            None: a newcomer with another plan cannot take part, and leaves.
        """
        self._begin()
        rows = await self._rows()
        if self._restore is not None and not any(row["known"] for row in rows):
            await self._restore(self)
            rows = await self._rows()
        if not self._check_rows(rows):
            return None
        known = [member for member, row in enumerate(rows) if row["known"]]
        source = known[0] if known else 0
        commons = [array.copy() for array in self._common]
        works = [self.pg.broadcast(array, source, async_op=True) for array in commons]
        for work in works:
            await work
        told = rows[source]
        wanted = [shards_of(member, self.pg.size, self._redundancy) for member in range(self.pg.size)]
        shares = self._shares
        lost = any(row["lost"] for row in rows)
        if not known and lost:
            everything = sum(math.prod(shape) for _, shape in self._forms)
            return _Met(shares, self.steps, [], commons, everything, lost)
        if not all(same(row, self.pg.size, mine) for row, mine in zip(rows, wanted, strict=True)):
            held = [
                Partition(self._buckets, row["size"], self._whole).intervals(row["shards"])
                if row["known"] or (not known and member == source)
                else []
                for member, row in enumerate(rows)
            ]
            found, missing = moves([self._partition.intervals(mine) for mine in wanted], held)
            if missing:
                elements = sum(stop - start for _, start, stop in set(missing))
                return _Met(shares, self.steps, [], commons, elements, lost)
            shares = await self._moved(found, alike([row["entries"] for row in rows if row["known"]]))
        elif self._loaded:
            shares = self._empty_shares()  # where peers can read
            shares.take_over(self._shares)
        await self._gather(shares)
        return _Met(shares, told["steps"], told["options"] if known else [], commons)

    async def _rows(self) -> list[dict[str, Any]]:
        """What each member has."""
        if self._complete:
            await self._apart(sum(run.nbytes for run in self._shares.values[0]), self._refresh)
        held = self._shares
        mine = {
            "known": self._held,
            "lost": self._lost,
            "plan": self._plan,
            "steps": self.steps,
            # without a state this rank's arrays are all there is: one shard
            "size": held.size if self._held else 1,
            "shards": held.shards if self._held else [0],
            "entries": held.entries() if self._held else {},
            "options": self._update.options,
        }
        return await self.pg.all_gather_object(mine)

    def _check_rows(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Whether all members have this rank's plan.

        Raises:
            UsageError: they have not, and this rank is not in the middle of training.
        """
        known = [row for row in rows if row["known"]]
        ranks, me = self.pg.ranks, self.pg.ranks[self.pg.rank]
        for member, row in enumerate(rows):
            if row["plan"] != self._plan and (row["known"] or not self._held):
                raise UsageError(
                    f"rank {ranks[member]} has other arrays, or another plan, than rank {me}",
                    hint="Construct ShardedOptimizer with the same shapes and arguments on all ranks",
                )
            if row["known"] and row["steps"] != known[0]["steps"]:
                raise UsageError(
                    f"rank {ranks[member]} is at step {row['steps']}, and another one at "
                    f"{known[0]['steps']}: they have loaded different checkpoints",
                    hint="Load the same one on all ranks",
                )
        return all(row["plan"] == self._plan for row in rows)

    async def _moved(self, found: Sequence[Move], entries: Mapping[int, list[Entry]]) -> Shares:
        """New shares of this rank, with what it had itself and what others send."""
        me, shares = self.pg.rank, self._empty_shares()
        own = self._shares if self._held else None
        views = self._views()
        nbytes = [[0] * self.pg.size for _ in range(2)]  # to each member, and from each
        outgoing: list[list[Array]] = [[] for _ in range(self.pg.size)]
        for move in found:
            listed = entries.get(move.index, [])
            count = nbytes_of(move, self._forms[move.index][0], listed)
            if move.source == me:
                nbytes[0][move.target] += count
                if own is not None:
                    outgoing[move.target] += own.packed(move, listed)
                else:
                    some = _flat(views[move.index])[move.start : move.stop]
                    outgoing[move.target].append(some.view(np.uint8))
            if move.target == me:
                nbytes[1][move.source] += count
        flat = np.concatenate([np.empty(0, np.uint8), *(part for parts in outgoing for part in parts)])
        came = np.empty(sum(nbytes[1]), np.uint8)
        await self.pg.all_to_all(flat, came, *nbytes)
        starts = np.cumsum([0, *nbytes[1]])
        streams = [came[starts[member] : starts[member + 1]] for member in range(self.pg.size)]
        for move in found:
            if move.target == me:
                listed = entries.get(move.index, [])
                streams[move.source] = shares.take(move, listed, streams[move.source], self._example_of())
        return shares

    def _example_of(self) -> Any:
        """Of whose family the state's arrays are: torch's for its optimisers, else NumPy's."""
        return (
            self._example if self.optimizer is not None and hasattr(self.optimizer, "param_groups") else None
        )

    # ── what is saved ────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """This rank's share of values and state, for `Checkpoints`: views, valid until the next step.

        Raises:
            UsageError: this rank has no values yet.
        """
        self._check_synced()
        self._refresh()
        arrays = Some()
        counts = [math.prod(shape) for _, shape in self._forms]
        entries = self._shares.entries()
        for one in self._shares.pieces[: self._shares.own]:
            told = {
                "values": Parts(one.values.dtype, (counts[one.index],), [(one.start, one.values.reshape(-1))])
            }
            kinds: dict[str, dict[str, Any]] = {ELEMENTS: {}, WHOLE: {}, SCALAR: {}}
            for entry in entries[str(one.index)]:
                name, kind = entry[:2]
                if kind == SCALAR:
                    kinds[kind][name] = entry[2:]
                    continue
                array = view(one.state[name], writable=False)
                shape = (counts[one.index],) if kind == ELEMENTS else array.shape
                kinds[kind][name] = Parts(
                    array.dtype, shape, [(one.start if kind == ELEMENTS else 0, array.reshape(-1))]
                )
            arrays[str(one.index)] = {**told, **kinds}
        return {
            "optimizer": self._update.name,
            "steps": self.steps,
            "options": self._update.options,
            "shapes": [[dtype.name, *shape] for dtype, shape in self._forms],
            "arrays": arrays,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take this rank's share of what was saved, by however many ranks; then `await optimizer`, on all.

        Args:
            saved: of `Checkpoints.load`, or of `state_dict` of the same rank in a group of this size.

        Raises:
            CheckpointError: it is of other arrays, or of another optimiser. Nothing has changed.
        """
        shapes = [[dtype.name, *shape] for dtype, shape in self._forms]
        if saved["optimizer"] != self._update.name:
            raise CheckpointError(
                f"the checkpoint is of {saved['optimizer']}, and the optimizer here is {self._update.name}",
                hint="Construct it with the optimizer that was saved",
            )
        for index, (theirs, ours) in enumerate(zip(saved["shapes"], shapes, strict=False)):
            if theirs != ours:
                raise CheckpointError(
                    f"trained array {index} is {theirs[0]}{theirs[1:]} in the checkpoint, and here "
                    f"{ours[0]}{ours[1:]}",
                    hint="It is of another model",
                )
        if len(saved["shapes"]) != len(shapes):
            raise CheckpointError(
                f"the checkpoint has {len(saved['shapes'])} trained arrays, and here are {len(shapes)}",
                hint="It is of another model",
            )
        # Called in a thread, perhaps: ordinary memory will do until the ranks meet.
        shares, example = self._new_shares(np.empty), self._example_of()
        for one in shares.pieces:
            theirs = saved["arrays"][str(one.index)]
            if theirs[WHOLE] and not self._whole:
                raise CheckpointError("the checkpoint is of whole arrays", hint="Pass whole=True")
            one.values.reshape(-1)[...] = theirs["values"].read(one.start, one.stop)
            for name, told in theirs[SCALAR].items():
                shares.entry(one, [name, SCALAR, *told], example)
            for kind in (ELEMENTS, WHOLE):
                for name, stored in theirs[kind].items():
                    entry = [name, kind, stored.dtype.name, list(stored.shape), None]
                    state = shares.entry(one, entry, example)
                    assert state is not None
                    first, last = (one.start, one.stop) if kind == ELEMENTS else (0, state.size)
                    state[...] = stored.read(first, last)
        self._shares, self.steps = shares, int(saved["steps"])
        if saved["options"]:
            self._update.options = saved["options"]
        self._update.place(shares.pieces)
        self._held = self._loaded = True
        self._synced = self._complete = self._lost = False


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)
