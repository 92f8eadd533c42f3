"""`DistributedDataParallel` for async loops: torch's wrapper, with `await ddp.sync()` in each step."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from aiodist.backends.arrays import view
from aiodist.backends.arrays.kernels import copy_cost_ns
from aiodist.base.errors import Evicted, GroupBroken, QuorumLost, UsageError, shown
from aiodist.base.types import ReduceOp
from aiodist.ddp.awaited import Once
from aiodist.ddp.buckets import MIB, cap_of
from aiodist.ddp.holders import first_holder, is_orphan, misfit, note_values
from aiodist.group import ProcessGroup
from aiodist.group.default import default_group
from aiodist.integrations.torch.data_parallel.buckets import GradBucket, buckets_of

Hook = Callable[[Any, GradBucket], Awaitable["torch.Tensor | None"]]
"""Gives the average of a bucket's gradients over all ranks: in its buffer (None), or in another tensor."""

_wrappers: weakref.WeakValueDictionary[int, DistributedDataParallel] = weakref.WeakValueDictionary()
"""By the id of each parameter, which a wrapper keeps alive."""

_COMPARED = (
    *("find_unused_parameters", "static_graph", "broadcast_buffers"),
    *("divide_by_initial_world_size", "elastic"),
)


class DistributedDataParallel(torch.nn.Module):  # type: ignore[misc]
    """A wrapper of a module: every rank has a copy, and the gradients are averaged over all ranks::

        ddp = await dist.DistributedDataParallel(model, pg)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_of(ddp(inputs), targets)
            loss.backward()                # buckets start on their way as they fill
            await ddp.sync()               # now every p.grad is the average
            optimizer.step()

    Awaiting it gives every rank rank 0's parameters and buffers. In a backward pass autograd's hooks fill
    buckets. A bucket starts when it is full and all earlier buckets have started. `sync` waits for them.
    `loss.backward()` holds the event loop, as any computation does; `await ddp.backward(loss)` does it in a
    thread, and other tasks go on.

    A gradient is divided by the number of ranks before they are added up, as torch does it, so that with two
    ranks every bit is the same.

    A backward pass that raises is part of a step, too: its `sync` comes next, as on the other ranks. The
    wrapper cannot be copied or saved; its module can.

    Args:
        module: with parameters of floating or complex dtypes, on one device, alike on all ranks.
        pg: the group; None takes the default one. With `elastic`: the world, or what `dist.join()` gives.
        process_group: torch's name for `pg`.
        bucket_cap_mb: size at which a bucket is closed, in MiB; the first one at 1 MiB.
        find_unused_parameters: some parameters may not be used in a loss. The buckets from the first such
            parameter on start in `sync`. A gradient that no rank has stays as it was.
        static_graph: every loss uses the same parameters, and each gets its gradient as often as in the first
            step (more than once, if a layer is used again). The first step sends nothing before `sync`.
        broadcast_buffers: every `sync` gives all ranks the buffers (running means, say) of the first rank
            that still has data.
        gradient_as_bucket_view: gradients lie in the buckets, which saves a copy of each and its memory.
        divide_by_initial_world_size: in `join`, divide by all ranks; False: by those that still have data.
            It has no effect if a comm hook divides.
        elastic: go on when members die or join: `sync` then says whether the step counts.
        state: tensors that every member must have alike besides the module's, newcomers too (momentum, a
            counter of steps). All have rank 0's at first.
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
        process_group: ProcessGroup | None = None,
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
        pg = process_group if pg is None else pg
        if pg is not None and not isinstance(pg, ProcessGroup):
            raise UsageError(
                f"pg must be a ProcessGroup of aiodist, not {type(pg).__name__}",
                hint="Pass the group by its name, pg=…; where the parameters lie says the device",
            )
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
        if any(id(parameter) in _wrappers for parameter in self._trained):
            raise UsageError(
                "a parameter of the module belongs to another wrapper already",
                hint="Wrap a module once; `del` the wrapper before you make another one",
            )
        for name, buffer in module.named_buffers():
            view(buffer, writable=True, what=f"buffer {name}", device=True)
        for value in self._state:
            if not isinstance(value, torch.Tensor):
                raise UsageError(f"state must be tensors of torch, not {shown(value)}")
            view(value, writable=True, what="a tensor of state", device=True)
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._hook: Hook | None = None
        self._hook_state: Any = None
        self._synchronising = True  # not within no_sync
        self._synced = self._holds = False  # these members have the same values; this one ever had them
        self._times: list[int] | None = None  # how often each gradient comes in a step; static, once known
        self._passes: set[asyncio.Future[None]] = set()  # backward passes in threads
        self._ending, self._sharing = Once[bool](), Once[None]()
        self._syncs = False
        self._before: list[torch.Tensor] | None = None  # elastic: the buffers before the step's first pass
        self._seen: list[tuple[int, int]] = []  # the buffers' versions after the last pass
        self._make_buckets()
        itself = weakref.ref(self)  # parameters may outlive the wrapper
        for index, parameter in enumerate(self._trained):
            parameter.register_post_accumulate_grad_hook(partial(_accumulated, itself, index))
            _wrappers[id(parameter)] = self

    def __getstate__(self) -> Any:
        raise UsageError(
            "the wrapper cannot be copied or saved: it belongs to its group",
            hint="Copy or save ddp.module, or its state_dict()",
        )

    # ── before the first step ────────────────────────────────────────────────────────────────────────

    def __await__(self) -> Generator[Any, None, DistributedDataParallel]:
        yield from self._sharing.of(self._share).__await__()
        return self

    async def _share(self) -> None:
        """Give all ranks the values of the first that has ever had them with others, or else of rank 0.
        Who is cancelled ends only the wait."""
        while not self._synced:
            try:
                source = await self._compared()
                if source is None:
                    await self._regroup()
                    continue
                await self._share_all(source)
                self._synced = self._holds = True
                if self._elastic:
                    note_values(self.pg)
            except GroupBroken as error:
                await self._regroup(error)

    async def _share_all(self, source: int) -> None:
        """Give all ranks one's values and state. Elastic: where that fails, all of a rank's are as before: it
        may be the next source."""
        values = [value.detach() for value in (*self._values(), *self._state)]
        apart = self._elastic and self.pg.rank != source
        arriving = [torch.empty_like(value) for value in values] if apart else values
        await self._broadcast(source, arriving)
        if apart:
            nbytes = sum(value.nbytes for value in values)
            await self.pg._core.apart(copy_cost_ns(nbytes), partial(_copy_all, values, arriving))

    async def _compared(self) -> int | None:
        """Compare the modules and the options → whose values count; None: a newcomer has another module, and
        leaves.

        Raises:
            UsageError: this rank has another module than those that have the values.
        """
        values = [*self._named_values(), *((f"state[{n}]", value) for n, value in enumerate(self._state))]
        mine = [f"{name}: {value.dtype} {list(value.shape)}" for name, value in values]
        mine += [f"{name} with requires_grad" for name in self._names]
        options = (self._finds, self._static, self._sends_buffers, self._by_all, self._elastic)
        mine += [f"bucket_cap_mb={self._cap / MIB:g}", *map("{}={}".format, _COMPARED, options)]
        orphan = self._elastic and is_orphan(self.pg)
        rows = await self.pg.all_gather_object((self._holds, orphan, mine))
        holds, orphans, modules = map(list, zip(*rows, strict=True))
        other = misfit(modules, holds, self.pg.rank)
        if other is not None:
            pairs = zip([*mine, "nothing"], [*modules[other], "nothing"], strict=False)
            here, there = next(pair for pair in pairs if pair[0] != pair[1])
            raise UsageError(
                f"the modules differ: here is {here}, on rank {other} {there}",
                hint="Make the same module on all ranks, and wrap it alike",
            )
        if any(module != mine for module in modules):
            return None
        return first_holder(holds, orphans)

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
        pending = self._begun or self._ending.pending
        if pending and self._synchronising and torch.is_grad_enabled():
            raise UsageError(
                "a backward pass was not followed by sync()",
                hint="Await sync() after each backward pass, also after one that raised; put passes whose "
                "gradients add up into no_sync(), all but the last",
            )
        if not (self._elastic and torch.is_grad_enabled()):
            return self.module(*inputs, **options)
        begun = self._begun or self._added_up
        if self._before is None or (not begun and self._versions() != self._seen):  # loaded anew, say
            self._before = [buffer.detach().clone() for buffer in self.module.buffers()]
        result = self.module(*inputs, **options)
        self._seen = self._versions()
        return result

    def _versions(self) -> list[tuple[int, int]]:
        """The buffers' versions, which torch counts up at each change in place."""
        return [(id(buffer), buffer._version) for buffer in self.module.buffers()]

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A block in which gradients add up and nothing is sent; the next pass outside it sends the sums."""
        before, self._synchronising = self._synchronising, False
        try:
            yield
        finally:
            self._synchronising = before

    async def backward(self, loss: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        """Run `loss.backward(gradient)` in a thread: the loop goes on meanwhile.

        Cancelling it ends only the wait; `sync` waits for the thread.
        """
        run = asyncio.ensure_future(asyncio.to_thread(loss.backward, gradient))
        self._passes.add(run)
        run.add_done_callback(self._passes.discard)
        await asyncio.shield(run)

    async def sync(self) -> bool:
        """Wait until every `p.grad` is the average over all ranks, and the buffers are the same.

        Cancelling it ends only the wait; call it again.

        Returns:
            → True. Elastic: False where members have died or joined: the gradients of this step are gone, do
            it again. All members, newcomers too, have the same parameters, buffers and state then.

        Raises:
            UsageError: there was no backward pass; or it gave no gradient to some parameters, which
                are named. The others have gone on, and so can this rank.
            GroupBroken: the group broke. Elastic: only `Evicted` and `QuorumLost`; that, too, where all died
                that had the parameters.
        """
        with self._by_one_task("sync"):
            return await self._sync()

    @contextlib.contextmanager
    def _by_one_task(self, name: str) -> Iterator[None]:
        """Refuse a `sync` or `join` beside another one."""
        if asyncio.get_running_loop() is not self._loop or self._syncs:
            where = "in another task" if self._syncs else "on another event loop than the wrapper's"
            raise UsageError(
                f"{name}() was called {where}", hint="One task has to await it, once in each step"
            )
        self._syncs = True
        try:
            yield
        finally:
            self._syncs = False

    async def _sync(self) -> bool:
        while self._passes:
            await asyncio.wait(self._passes)
        if not self._ending.pending:  # else an earlier call was cancelled
            self._start_rest()
        missing = [index for index, times in enumerate(self._came) if not times]
        try:
            if not await self._ending.of(self._end):
                return False
            self._write()
        except (GroupBroken, asyncio.CancelledError):
            raise
        except BaseException:  # of a hook: the next step may do better
            self._reset()
            raise
        self._reset()
        if missing and not (self._finds or self._static):
            names = ", ".join(self._names[index] for index in missing[:5])
            raise UsageError(
                f"{len(missing)} parameters got no gradient: {names}{', …' * (len(missing) > 5)}",
                hint="Pass find_unused_parameters=True, or have them take part in the loss",
            )
        return True

    def _start_rest(self) -> None:
        """Start the buckets that have not started: the backward pass is over."""
        if not self._synced:
            raise _never_shared()
        if not self._begun:
            raise UsageError(
                "there was no backward pass since the last sync()",
                hint="Call loss.backward() before, the last one outside no_sync()",
            )
        if self._static and self._times is None:
            self._times = list(self._came)
        for index in range(len(self._trained)):
            self._fill(index)
        self._start_full()

    async def join(self) -> None:
        """Take part without data until all ranks have called it: for inputs that are uneven.

        Every rank calls it after its loop. Ranks that still have data go on with steps, to which this rank
        adds zeros. In the end all have the parameters and buffers of the last rank that had data.

        This makes a step no slower: the last bucket carries which ranks have data. A loop with other
        communication cannot be joined.

        Raises:
            UsageError: a backward pass was not followed by `sync`; elastic wrappers have no `join`.
            GroupBroken: the group broke.
        """
        if self._elastic:
            raise UsageError(
                "an elastic wrapper has no join()", hint="Deal the data out by ddp.pg.rank and ddp.pg.size"
            )
        if self._begun:
            raise UsageError("join() was called before the last step was over", hint="Await sync() first")
        with self._by_one_task("join"):
            await self._join()

    async def _join(self) -> None:
        while True:
            self._has_data = False
            for index in range(len(self._trained)):
                self._fill(index)
            self._start_full()
            await self._ending.of(self._end)
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
        if self._hook is not None or self._begun:
            raise UsageError("one comm hook can be registered, before the first step")
        self._hook, self._hook_state = hook, state
        self._make_buckets()

    # ── the buckets of a step ────────────────────────────────────────────────────────────────────────

    def _make_buckets(self) -> None:
        """Make them in the group's memory. Behind the last one's gradients is a place for each rank, which
        says by 1 whether it has data, and one for each parameter that may be unused. It is sent last, when
        all gradients have come."""
        used = len(self._trained) if self._finds or self._static else 0
        tail = self.pg.size + used
        apart = self._hook is not None  # a hook may change what it is given
        self._buckets = buckets_of(self.pg, self._names, self._trained, self._cap, 0 if apart else tail)
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        last = self._buckets[-1]
        self._tail = last.memory.new_empty(tail) if apart else last.tail
        self._has_data = True
        self._active = self._active_now = list(range(self.pg.size))
        self._reset()

    def _reset(self) -> None:
        """Begin a step."""
        self._begun = False  # a gradient has come that is to be sent
        self._came = [0] * len(self._trained)
        self._missing = [set(bucket.indices) for bucket in self._buckets]
        self._works: list[Awaitable[Any]] = []
        self._added_up: set[int] = set()  # gradients that came within no_sync
        self._before = None

    def _arrived(self, index: int) -> None:
        """Note that autograd has a gradient; in whichever thread that runs."""
        if not self._synchronising:
            if self._begun:
                raise UsageError(
                    "a backward pass within no_sync() came after the pass that sends the gradients",
                    hint="Await sync() before, or run the last pass outside no_sync()",
                )
            self._added_up.add(index)
            return
        if not self._synced:
            raise _never_shared()
        first, self._begun = not self._begun, True
        self._came[index] += 1
        if self._static and self._times is None:
            return  # how often it comes is not known yet
        if first and self._times:
            for other, times in enumerate(self._times):
                if not times:
                    self._fill(other)
        if self._came[index] > (self._times[index] if self._times else 1):
            raise UsageError(
                f"the gradient of {self._names[index]} came once more than it may in this step",
                hint="Await sync() after each backward pass, put all but the last into no_sync(); where one "
                "pass uses a layer several times, pass static_graph=True",
            )
        if not self._times or self._came[index] == self._times[index]:
            self._fill(index)
            if threading.get_ident() == self._thread:
                self._start_full()
            else:
                self._loop.call_soon_threadsafe(self._start_full)

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
            elif gradient.dtype != place.dtype:
                raise UsageError(
                    f"the gradient of {self._names[index]} is of {gradient.dtype}, and was of {place.dtype}",
                    hint="Convert the module before you wrap it",
                )
            elif gradient.data_ptr() == place.data_ptr():
                if not (self._came[index] or index in self._added_up):
                    self._trained[index].grad = gradient.clone()  # it stays as it was, if no rank has one
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
            if self._hook is None:
                if bucket.is_last():
                    self._fill_tail()
                self._works.append(self.pg.all_reduce(bucket.memory, ReduceOp.SUM, async_op=True))
            else:
                before = self._works[-1] if self._works else None
                self._works.append(self._loop.create_task(self._hooked(bucket, before)))

    async def _hooked(self, bucket: GradBucket, before: Awaitable[Any] | None) -> torch.Tensor | None:
        """Call the hook when that of the bucket before has ended: operations have one order on all ranks."""
        if before is not None:
            await before
        assert self._hook is not None
        made: Any = self._hook(self._hook_state, bucket)
        if not inspect.isawaitable(made):
            raise UsageError(
                f"the comm hook gave {shown(made)}, which cannot be awaited", hint="Write it as `async def`"
            )
        result = await made
        if result is None:
            return None
        whole = bucket.buffer()
        if not isinstance(result, torch.Tensor) or result.numel() != whole.numel():
            gave = f"{result.numel()} elements" if isinstance(result, torch.Tensor) else shown(result)
            raise UsageError(f"the comm hook gave {gave} for a bucket of {whole.numel()} elements")
        return result.detach().to(whole).reshape(-1).contiguous()

    def _fill_tail(self) -> None:
        """Say that this rank has data, and which parameters it has used; when all gradients have come."""
        with torch.no_grad():
            self._tail.zero_()
            if self._has_data:
                self._tail[self.pg.rank] = 1
                if len(self._tail) > self.pg.size:
                    used = [times > 0 or index in self._added_up for index, times in enumerate(self._came)]
                    self._tail[self.pg.size :] = torch.tensor(used)

    async def _end(self) -> bool:
        """Wait for the buckets, then for the buffers → whether the step counts; elastic: all members say so,
        if they have them."""
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
        for buffer, before in zip(self.module.buffers(), self._before or (), strict=False):
            buffer.copy_(before)
        await self._regroup()
        await self._share()
        return False

    async def _received(self) -> None:
        results = await asyncio.gather(*self._works, return_exceptions=True)  # all are over then
        failed = [result for result in results if isinstance(result, BaseException)]
        if self._hook is not None and not any(isinstance(error, GroupBroken) for error in failed):
            self._fill_tail()  # also where the hook failed here: the others wait for it
            await self.pg.all_reduce(self._tail)
        if failed:
            raise failed[0]
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
                averages = bucket.views if result is None else bucket.views_of(result)
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


def _copy_all(values: list[torch.Tensor], arrived: list[torch.Tensor]) -> None:
    for value, one in zip(values, arrived, strict=True):
        value.copy_(one)


def _never_shared() -> UsageError:
    return UsageError(
        "the parameters were never shared",
        hint="Write `ddp = await dist.DistributedDataParallel(…)` before the first step",
    )


def _accumulated(wrapper: weakref.ref[DistributedDataParallel], index: int, _parameter: Any) -> None:
    alive = wrapper()
    if alive is not None:
        alive._arrived(index)
