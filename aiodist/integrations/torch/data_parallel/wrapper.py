"""`DistributedDataParallel` for async loops: torch's wrapper, with `await ddp.sync()` in each step."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from aiodist.ddp.buckets import cap_of
from aiodist.errors import Evicted, GroupBroken, QuorumLost, UsageError
from aiodist.group import ProcessGroup
from aiodist.group.default import default_group
from aiodist.integrations.torch.data_parallel.buckets import GradBucket, buckets_of
from aiodist.integrations.torch.data_parallel.graph import reached_from
from aiodist.types import ReduceOp

Hook = Callable[[Any, GradBucket], Awaitable[torch.Tensor | None]]
"""Gives the average of a bucket's gradients over all ranks: in its buffer (None), or in another tensor."""


class DistributedDataParallel(torch.nn.Module):  # type: ignore[misc]
    """A module of which every rank has a copy, and whose gradients are averaged over all ranks.

        ddp = await dist.DistributedDataParallel(model, pg)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_of(ddp(inputs), targets)
            loss.backward()                # buckets start on their way as they fill
            await ddp.sync()               # now every p.grad is the average
            optimizer.step()

    Awaiting it gives every rank rank 0's parameters and buffers. In a backward pass autograd's hooks fill
    buckets, each of which starts when it is full and its forerunners have started. `sync` waits for them.
    `loss.backward()` holds the event loop, as any computation does; `await ddp.backward(loss)` does it in a
    thread, and other tasks go on.

    A gradient is divided by the number of ranks before they are added up, as torch does it, so that with two
    ranks every bit is the same.

    Args:
        module: with parameters of floating or complex dtypes, on one device, alike on all ranks.
        pg: the group; None takes the default one. Elastic: a world.
        bucket_cap_mb: size at which a bucket is closed, in MiB; the first one at 1 MiB.
        find_unused_parameters: parameters may have no part in a loss. Each forward pass looks which have one,
            so that nothing waits for the others. A gradient that no rank has stays as it was.
        static_graph: the same parameters have a part in every loss, each as often as in the first: so only
            the first step looks, and sends nothing before `sync`.
        broadcast_buffers: every `sync` gives all ranks the buffers (running means, say) of the first rank
            that still has data.
        gradient_as_bucket_view: gradients lie in the buckets, which saves a copy of each and its memory.
        divide_by_initial_world_size: in `join`, divide by all ranks; False: by those that still have data.
        elastic: go on when members die or join: `sync` then says whether the step counts.
        state: tensors that every member must have alike besides the module's, newcomers too (momentum, a
            counter of steps).
        min_size: elastic: with fewer members training ends by `QuorumLost`.

    Attributes:
        module: the wrapped one.
        pg: the group; elastic: another one after each change.

    Raises:
        UsageError: a parameter cannot be averaged; there is none with requires_grad.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        pg: ProcessGroup | None = None,
        *,
        bucket_cap_mb: float = 25,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        divide_by_initial_world_size: bool = True,
        elastic: bool = False,
        state: Iterable[torch.Tensor] = (),
        min_size: int = 1,
    ) -> None:
        super().__init__()
        if not isinstance(module, torch.nn.Module):
            raise UsageError(f"DistributedDataParallel takes a torch.nn.Module, not {type(module).__name__}")
        self.module = module
        self.pg = default_group() if pg is None else pg
        if elastic:
            self.pg.check_rebuild()
        self._cap = cap_of(bucket_cap_mb)
        self._finds, self._static = find_unused_parameters and not static_graph, static_graph
        self._sends_buffers = broadcast_buffers
        self._in_place = gradient_as_bucket_view
        self._by_all = divide_by_initial_world_size
        self._elastic, self._min_size, self._state = elastic, min_size, list(state)
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trained:
            raise UsageError("the module has no parameter with requires_grad: there is nothing to average")
        self._names = [name for name, _ in trained]
        self._trained = [parameter for _, parameter in trained]
        self._number_of = {id(parameter): index for index, parameter in enumerate(self._trained)}
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._hook: Hook | None = None
        self._hook_state: Any = None
        self._synchronising = True  # not within no_sync
        self._synced = False
        self._times: list[int] | None = None  # how often each gradient comes in a step; static, once known
        self._make_buckets()
        itself = weakref.ref(self)  # parameters may outlive the wrapper
        for index, parameter in enumerate(self._trained):
            parameter.register_post_accumulate_grad_hook(partial(_accumulated, itself, index))

    # ── before the first step ────────────────────────────────────────────────────────────────────────

    def __await__(self) -> Generator[Any, None, DistributedDataParallel]:
        yield from self._share().__await__()
        return self

    async def _share(self) -> None:
        """Give all ranks rank 0's values; elastic: of whichever members there are by then."""
        while not self._synced:
            try:
                await self._check_alike()
                await self._broadcast(0, [*self._values(), *self._state])
                self._synced = True
            except GroupBroken as error:
                await self._regroup(error)

    async def _check_alike(self) -> None:
        mine = [f"{name}: {value.dtype} {list(value.shape)}" for name, value in self._named_values()]
        for rank, theirs in enumerate(await self.pg.all_gather_object(mine)):
            if theirs != mine:
                pairs = zip([*mine, "nothing"], [*theirs, "nothing"], strict=False)
                here, there = next(pair for pair in pairs if pair[0] != pair[1])
                raise UsageError(
                    f"the modules differ: here is {here}, on rank {rank} {there}",
                    hint="Make the same module on all ranks",
                )

    def _named_values(self) -> list[tuple[str, torch.Tensor]]:
        return [*self.module.named_parameters(), *self.module.named_buffers()]

    def _values(self) -> list[torch.Tensor]:
        return [value.detach() for _, value in self._named_values()]

    async def _broadcast(self, source: int, tensors: Iterable[torch.Tensor]) -> None:
        works = [self.pg.broadcast(tensor.detach(), source, async_op=True) for tensor in tensors]
        for work in works:
            await work

    async def _regroup(self, error: GroupBroken | None = None) -> None:
        """Go on with the members that are left, and newcomers; the values are to be shared then."""
        if error is not None and (not self._elastic or isinstance(error, Evicted | QuorumLost)):
            raise error
        self.pg = await self.pg.rebuild(self._min_size)
        self._synced = False
        self._make_buckets()

    # ── a step ───────────────────────────────────────────────────────────────────────────────────────

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the module."""
        outputs = self.module(*inputs, **options)
        if self._finds and self._synchronising and torch.is_grad_enabled():
            reached = reached_from(outputs)
            self._in_graph |= {index for id_, index in self._number_of.items() if id_ in reached}
            self._looked = True
        return outputs

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A block in which gradients add up and nothing is sent; the next pass outside it sends the sums."""
        before, self._synchronising = self._synchronising, False
        try:
            yield
        finally:
            self._synchronising = before

    async def backward(self, loss: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        """Run `loss.backward(gradient)` in a thread: the loop goes on meanwhile."""
        await asyncio.to_thread(loss.backward, gradient)

    async def sync(self) -> bool:
        """Wait until every `p.grad` is the average over all ranks, and the buffers are the same.

        Cancelling it ends the wait only; call it again.

        Returns:
            → True. Elastic: False where members have died or joined; nothing counts of this step, do it
            again. All members, newcomers too, have the same parameters, buffers and state then.

        Raises:
            UsageError: there was no backward pass; or it gave no gradient to some parameters, which
                are named. The others have gone on, and so can this rank.
            GroupBroken: the group broke. Elastic: only `Evicted` and `QuorumLost`.
        """
        if not self._synced:
            raise UsageError(
                "the parameters were never shared",
                hint="Write `ddp = await dist.DistributedDataParallel(…)` before the first step",
            )
        if not any(self._came):
            raise UsageError(
                "there was no backward pass since the last sync()",
                hint="Call loss.backward() before, the last one outside no_sync()",
            )
        if self._static and self._times is None:
            self._times = list(self._came)
            for index, times in enumerate(self._came):
                if times:
                    self._fill(index)
        missing = [index for index, times in enumerate(self._came) if not times]
        for index in missing:
            self._fill(index)
        self._start_full()
        if not await self._over():
            return False
        self._write()
        self._reset()
        if missing and not (self._finds or self._static):
            names = ", ".join(self._names[index] for index in missing[:5])
            raise UsageError(
                f"{len(missing)} parameters got no gradient: {names}{', …' * (len(missing) > 5)}",
                hint="Pass find_unused_parameters=True, or have them take part in the loss",
            )
        return True

    async def join(self) -> None:
        """Take part without data until all ranks have called it: for inputs that are uneven.

        Every rank calls it behind its loop. Those that still have data go on with steps, to which this rank
        adds zeros. In the end all have the parameters and buffers of the last one that had data.

        A step costs nothing more for that: which ranks have data rides on the first bucket. A loop that
        communicates otherwise, too, cannot be joined.

        Raises:
            UsageError: a backward pass was not followed by `sync`; elastic wrappers have no `join`.
            GroupBroken: the group broke.
        """
        if self._elastic or any(self._came):
            why = "elastic steps are dealt out anew instead" if self._elastic else "the last step is not over"
            raise UsageError(f"join() is not to be called now: {why}", hint="Call sync() first")
        while True:
            self._has_data = False
            for index in range(len(self._trained)):
                self._fill(index)
            self._start_full()
            await self._over()
            self._reset()
            if not self._active_now:
                break
        self._has_data = True
        await self._broadcast(self._active[0], self._values())

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Have a coroutine average the buckets: to compress them, for instance.

            async def in_half(state, bucket):
                half = (bucket.buffer() / ddp.pg.size).to(torch.bfloat16)
                return (await ddp.pg.all_reduce(half)).to(bucket.buffer().dtype)

        Args:
            state: the hook's first argument.
            hook: called with each bucket of a step, one after the other, on the loop. All ranks issue the
                same operations in it. It gives the averages as a tensor, or None where they are in
                `bucket.buffer()`.

        Raises:
            UsageError: there is one already, or a step has begun.
        """
        if self._hook is not None or any(self._came):
            raise UsageError("one comm hook can be registered, before the first step")
        self._hook, self._hook_state = hook, state
        self._make_buckets()

    # ── the buckets of a step ────────────────────────────────────────────────────────────────────────

    def _make_buckets(self) -> None:
        """Make them in the group's memory. Behind the first one's gradients is a place for each rank, which
        says by 1 whether it has data, and one for each parameter that may be unused."""
        used = len(self._trained) if self._finds or self._static else 0
        tail = self.pg.size + used
        apart = self._hook is not None  # a hook may change what it is given
        self._buckets = buckets_of(self.pg, self._names, self._trained, self._cap, 0 if apart else tail)
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        example = self._buckets[0].memory
        self._tail = example.new_empty(tail) if apart else self._buckets[0].tail
        self._has_data = True
        self._active = self._active_now = list(range(self.pg.size))
        self._reset()

    def _reset(self) -> None:
        """Begin a step."""
        self._came = [0] * len(self._trained)
        self._in_graph: set[int] = set()
        self._looked = False
        self._ending: asyncio.Task[bool] | None = None
        self._missing = [set(bucket.indices) for bucket in self._buckets]
        self._works: list[Awaitable[Any]] = []
        self._tail_work: Awaitable[Any] | None = None
        self._added_up: set[int] = set()  # gradients that came within no_sync

    def _arrived(self, index: int) -> None:
        """Note that autograd has a gradient; in whichever thread that runs."""
        if not self._synchronising:
            self._added_up.add(index)
            return
        if not self._synced:
            raise UsageError(
                "the parameters were never shared",
                hint="Write `ddp = await dist.DistributedDataParallel(…)` before the first step",
            )
        first = not any(self._came)
        self._came[index] += 1
        if self._static and self._times is None:
            return  # how often it comes is not known yet
        if first:
            for other in range(len(self._trained)):
                if not self._expects(other):
                    self._fill(other)
        if self._came[index] > (self._times[index] if self._times else 1):
            raise UsageError(
                f"the gradient of {self._names[index]} came once more than it may in this step",
                hint="Await sync() after each backward pass, put all but the last into no_sync(), "
                "or pass static_graph=True",
            )
        if not self._times or self._came[index] == self._times[index]:
            self._fill(index)
            if threading.get_ident() == self._thread:
                self._start_full()
            else:
                self._loop.call_soon_threadsafe(self._start_full)

    def _expects(self, index: int) -> bool:
        """Whether this step's backward pass will bring a gradient, as far as that is known."""
        if self._times is not None:
            return self._times[index] > 0
        return not self._looked or index in self._in_graph

    def _fill(self, index: int) -> None:
        """Put a gradient into its bucket; zeros, where there is none."""
        bucket = self._bucket_of[index]
        if index not in self._missing[bucket.index()]:
            return  # it is there already
        place = bucket.views[index]
        gradient = self._trained[index].grad if self._has_data else None
        scale = 1.0 if self._hook is not None else 1.0 / self.pg.size
        with torch.no_grad():
            if gradient is None:
                place.zero_()
            elif gradient.layout is not torch.strided:
                raise UsageError(
                    f"the gradient of {self._names[index]} is of layout {gradient.layout}, "
                    "which cannot be averaged",
                    hint="Make the layer with sparse=False",
                )
            elif gradient.data_ptr() == place.data_ptr():
                place.mul_(scale)
            else:
                torch.mul(gradient, scale, out=place)
                if self._in_place:
                    self._trained[index].grad = place
        self._missing[bucket.index()].discard(index)

    def _start_full(self) -> None:
        """Start the buckets that are full, in their order; on the loop."""
        while len(self._works) < len(self._buckets) and not self._missing[len(self._works)]:
            bucket = self._buckets[len(self._works)]
            if not self._works:
                self._fill_tail()
            if self._hook is None:
                self._works.append(self.pg.all_reduce(bucket.memory, ReduceOp.SUM, async_op=True))
                continue
            if not self._works:
                self._tail_work = self.pg.all_reduce(self._tail, ReduceOp.SUM, async_op=True)
            before = self._works[-1] if self._works else None
            self._works.append(self._loop.create_task(self._hooked(bucket, before)))

    async def _hooked(self, bucket: GradBucket, before: Awaitable[Any] | None) -> torch.Tensor | None:
        """Call the hook when that of the bucket before has ended: operations have one order on all ranks."""
        if before is not None:
            await before
        assert self._hook is not None
        return await self._hook(self._hook_state, bucket)

    def _fill_tail(self) -> None:
        """Say that this rank has data, and, as far as that is known, which parameters it uses."""
        with torch.no_grad():
            self._tail.zero_()
            if self._has_data:
                self._tail[self.pg.rank] = 1
                if len(self._tail) > self.pg.size:
                    used = [self._expects(i) or i in self._added_up for i in range(len(self._trained))]
                    self._tail[self.pg.size :] = torch.tensor(used)

    async def _over(self) -> bool:
        """Wait for the end of the step → whether it counts. Who is cancelled ends only the wait."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())
        return await asyncio.shield(self._ending)

    async def _end(self) -> bool:
        """Wait for the buckets, then for the buffers; elastic: have all members say that they have them."""
        if not self._elastic:
            await self._received()
            return True
        well = self.pg.rank != 0 or not await self.pg.newcomers_here()
        try:
            await self._received()
        except (Evicted, QuorumLost):
            raise
        except GroupBroken:
            well = False
        if await self.pg.agree(well):
            return True
        await self._regroup()
        await self._share()
        return False

    async def _received(self) -> None:
        results = await asyncio.gather(*self._works, return_exceptions=True)  # all are over then
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if self._tail_work is not None:
            await self._tail_work
        self._active_now = self._tail[: self.pg.size].nonzero().flatten().tolist()
        self._active = self._active_now or self._active
        if self._sends_buffers and self._active_now:
            await self._share_buffers(self._active[0])

    async def _share_buffers(self, source: int) -> None:
        """Give all ranks one's buffers, those of one dtype as one."""
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for buffer in self.module.buffers():
            kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer.detach())
        joined = [torch.cat([buffer.reshape(-1) for buffer in buffers]) for buffers in kinds.values()]
        await self._broadcast(source, joined)
        if self.pg.rank != source:
            for whole, buffers in zip(joined, kinds.values(), strict=True):
                parts = whole.split([buffer.numel() for buffer in buffers])
                for buffer, part in zip(buffers, parts, strict=True):
                    buffer.copy_(part.reshape(buffer.shape))

    def _write(self) -> None:
        """Give the parameters the averages."""
        active, size = len(self._active), self.pg.size
        more = 1.0 if self._by_all or self._hook is not None else size / active
        used = self._tail[size:].tolist()
        with torch.no_grad():
            for bucket, work in zip(self._buckets, self._works, strict=True):
                result = work.result() if isinstance(work, asyncio.Task) else None
                averages = bucket.views if result is None else bucket.views_of(result.reshape(-1))
                for index, place in bucket.views.items():
                    if used and not used[index]:
                        continue  # no rank has it
                    if more != 1.0 or averages is not bucket.views:
                        torch.mul(averages[index], more, out=place)
                    parameter = self._trained[index]
                    if self._in_place:
                        parameter.grad = place
                    elif parameter.grad is None:
                        parameter.grad = place.clone()
                    else:
                        parameter.grad.copy_(place)


def _accumulated(wrapper: weakref.ref[DistributedDataParallel], index: int, _parameter: Any) -> None:
    alive = wrapper()
    if alive is not None:
        alive._arrived(index)
