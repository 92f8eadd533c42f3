"""The process group of torch's that is one of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as c10d

from aiodist.base.errors import AiodistError, GroupClosed, UsageError
from aiodist.base.types import ReduceOp
from aiodist.group import shapes
from aiodist.group.process_group import ProcessGroup
from aiodist.integrations.torch import reducer
from aiodist.integrations.torch.arguments import (
    all_of,
    apart,
    asked,
    fitting,
    one,
    plain,
    quick,
    sparse_in,
)
from aiodist.integrations.torch.callbacks import InOrder, origin
from aiodist.integrations.torch.composed import monitored_barrier, sparse_all_reduce
from aiodist.integrations.torch.functional import serve
from aiodist.integrations.torch.versions import pass_over, takes_more
from aiodist.integrations.torch.work import AiodistWork, as_torchs, once
from aiodist.portal.facade import SyncProcessGroup
from aiodist.portal.loop_thread import Reply

Start = Callable[..., Any]
"""Issues an operation of a group on the loop (`async_op=True`) → its Work."""


@takes_more
class AiodistProcessGroup(c10d.ProcessGroup):  # type: ignore[misc]
    """A group of torch's, which hands each call over to one of ours.

    Args:
        ours: the group behind it.
        name: torch's name for it.
        global_ranks: global ranks of the members, in this group's order.

    A call puts its operation on the portal's loop and returns; operations start in the order of the calls.
    A tensor that cannot be sent at all is refused in the call; what else is wrong is raised by `wait`.
    """

    asked_as = "aiodist"
    """The name by which a program has asked for it; the profiler shows that."""

    def __init__(self, ours: SyncProcessGroup, name: str, global_ranks: list[int]) -> None:
        super().__init__(ours.rank, ours.size)
        self.ours = ours
        self.global_ranks = global_ranks
        self._name = name
        self._desc = "undefined"
        self._barriers = 0  # monitored ones, so far
        self._issued = 0  # collectives of the program itself, so far
        self._flying: set[Reply] = set()  # those of them that have not ended; the loop's thread changes it
        self._in_order = InOrder(name)
        self._second: dict[str, SyncProcessGroup] = {}  # for what callbacks issue, by the group they are of
        serve(AiodistProcessGroup)
        reducer.serve(AiodistProcessGroup)

    # -- collectives ----------------------------------------------------------------------------

    def allreduce(self, tensors: Any, *given: Any, **named: Any) -> AiodistWork:
        """Reduce over all ranks, in place."""
        op, _, limit = asked(*given, **named)
        if (sparse := sparse_in(tensors)) is not None:
            return self._sparse(sparse, op)
        several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if len(several) == 1 and op is not ReduceOp.AVG and (array := quick(several[0])) is not None:
            return self._start("all_reduce", several, partial(_all_reduce, array, op=op), limit)
        tensor = one(tensors, "allreduce")
        start = _reducing(op, tensor, partial(_all_reduce, tensor))
        return self._start("all_reduce", [tensor], start, limit)

    def _sparse(self, tensor: Any, op: Any) -> AiodistWork:
        """Sum sparse tensors → a Work that is done: its steps keep their place among this caller's calls."""
        reply = Reply()
        try:
            total = self.ours.portal.call(sparse_all_reduce, self.ours._group, tensor, op)
            with torch.no_grad():
                tensor.copy_(total)
            reply.settle(None)
        except AiodistError as error:
            reply.settle(None, error)
        return AiodistWork(reply, [tensor], f"all_reduce of group {self._name}")

    def allreduce_coalesced(self, tensors: Sequence[Any], *given: Any, **named: Any) -> AiodistWork:
        """Reduce several tensors, which may be the same one."""
        each, (op, _, limit) = all_of(tensors), asked(*given, **named)
        own = [apart([tensor], each[:number])[0] for number, tensor in enumerate(each)]
        starts = [
            _copied(tensor, mine, _reducing(op, mine, partial(_all_reduce, mine)))
            for tensor, mine in zip(each, own, strict=True)
        ]
        return self._post("all_reduce", each, starts, limit)

    def all_reduce_quantized(self, tensor: Any, **options: Any) -> AiodistWork:
        """Average over all ranks, in place, by `ProcessGroup.all_reduce_quantized` with these options."""
        start = partial(_all_reduce_quantized, plain(tensor), options)
        return self._start("all_reduce_quantized", [tensor], start)

    def broadcast(self, tensors: Any, *given: Any, **named: Any) -> AiodistWork:
        """Copy the root's tensor to all ranks, in place."""
        tensor, (_, root, limit) = one(tensors, "broadcast"), asked(*given, **named)
        return self._start(
            "broadcast", [tensor], lambda pg, **more: pg.broadcast(tensor, root, **more), limit
        )

    def reduce(self, tensors: Any, *given: Any, **named: Any) -> AiodistWork:
        """Reduce to the root's tensor."""
        tensor, (op, root, limit) = one(tensors, "reduce"), asked(*given, **named)
        gets = root == self.ours.rank
        start = _reducing(op, tensor, partial(_reduce, tensor, root), gets)
        return self._start("reduce", [tensor], start, limit)

    def allgather(self, output_tensors: Any, input_tensors: Any, *given: Any, **named: Any) -> AiodistWork:
        """Give every rank's tensor to every rank, as a list."""
        outputs, tensor = _inner(output_tensors, "allgather"), one(input_tensors, "allgather")
        (tensor,) = apart([tensor], outputs)
        return self._start(
            "all_gather",
            outputs,
            partial(shapes.all_gather, tensors=outputs, tensor=tensor),
            asked(*given, **named).limit,
            [tensor],
        )

    def allgather_coalesced(
        self, output_lists: Any, input_list: Any, *given: Any, **named: Any
    ) -> AiodistWork:
        """Gather several tensors; `output_lists[r]` gets those of rank r."""
        inputs = all_of(input_list)
        rows = [all_of(row) for row in output_lists]
        if any(len(row) != len(inputs) for row in rows):
            raise UsageError("allgather_coalesced takes, for each rank, as many outputs as inputs")
        outs = [tensor for row in rows for tensor in row]
        inputs = apart(inputs, outs)
        starts = [
            partial(shapes.all_gather, tensors=[row[index] for row in rows], tensor=tensor)
            for index, tensor in enumerate(inputs)
        ]
        return self._post("all_gather", outs, starts, asked(*given, **named).limit, inputs)

    def all_gather_single(self, output: Any, input: Any, *given: Any, **named: Any) -> AiodistWork:
        """Gather every rank's tensor into one, along the first axis."""
        out = plain(output)
        (tensor,) = apart([plain(input)], [out])
        return self._start(
            "all_gather_into_tensor",
            [out],
            _gathering(out, tensor),
            asked(*given, **named).limit,
            [tensor],
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, *given: Any, **named: Any
    ) -> AiodistWork:
        """`all_gather_single` of several tensors."""
        outs = all_of(outputs)
        each = apart(all_of(inputs), outs)
        starts = [_gathering(out, tensor) for out, tensor in zip(outs, each, strict=True)]
        return self._post("all_gather_into_tensor", outs, starts, asked(*given, **named).limit, each)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, *given: Any, **named: Any
    ) -> AiodistWork:
        """Reduce a list of tensors over all ranks; rank r gets the r-th."""
        out, (op, _, limit) = one(output_tensors, "reduce_scatter"), asked(*given, **named)
        inputs = apart(_inner(input_tensors, "reduce_scatter"), [out])
        return self._start(
            "reduce_scatter",
            [out],
            _reducing(op, out, partial(shapes.reduce_scatter, output=out, tensors=inputs)),
            limit,
            inputs,
        )

    def reduce_scatter_single(self, output: Any, input: Any, *given: Any, **named: Any) -> AiodistWork:
        """Reduce one tensor over all ranks; rank r gets the r-th part of its first axis."""
        out, (op, _, limit) = plain(output), asked(*given, **named)
        (tensor,) = apart([plain(input)], [out])
        return self._start(
            "reduce_scatter_tensor",
            [out],
            _scattering(op, tensor, out),
            limit,
            [tensor],
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, *given: Any, **named: Any
    ) -> AiodistWork:
        """`reduce_scatter_single` of several tensors."""
        outs, (op, _, limit) = all_of(outputs), asked(*given, **named)
        each = apart(all_of(inputs), outs)
        starts = [_scattering(op, tensor, out) for out, tensor in zip(outs, each, strict=True)]
        return self._post("reduce_scatter_tensor", outs, starts, limit, each)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, *given: Any, **named: Any) -> AiodistWork:
        """Give every rank's tensor to the root, as a list."""
        tensor, (_, root, limit) = one(input_tensors, "gather"), asked(*given, **named)
        outputs = _inner(output_tensors, "gather") if output_tensors else None
        (tensor,) = apart([tensor], outputs or [])
        return self._start(
            "gather",
            outputs or [],
            partial(shapes.gather, tensor=tensor, tensors=outputs, dst=root),
            limit,
            [tensor],
        )

    def gather_single(self, output: Any, input: Any, *given: Any, **named: Any) -> AiodistWork:
        """Give every rank's tensor to the root, in one, along the first axis; since torch 2.14."""
        (_, root, limit), tensor = asked(*given, **named), plain(input)
        out = plain(output) if root == self.ours.rank else None
        if out is not None and not out.is_contiguous():
            raise UsageError("the output of gather_single must be contiguous")
        outs = [] if out is None else [out]
        (tensor,) = apart([tensor], outs)
        start = partial(_gather_single, tensor, out, root)
        return self._start("gather", outs, start, limit, [tensor])

    def scatter(self, output_tensors: Any, input_tensors: Any, *given: Any, **named: Any) -> AiodistWork:
        """Deal the root's list out to all ranks."""
        out, (_, root, limit) = one(output_tensors, "scatter"), asked(*given, **named)
        inputs = apart(_inner(input_tensors, "scatter"), [out]) if input_tensors else None
        return self._start(
            "scatter",
            [out],
            partial(shapes.scatter, tensor=out, tensors=inputs, src=root),
            limit,
            inputs or [],
        )

    def alltoall(self, output_tensors: Any, input_tensors: Any, *given: Any, **named: Any) -> AiodistWork:
        """Send the j-th input to rank j, get the i-th output from rank i."""
        outs = all_of(output_tensors)
        inputs = apart(all_of(input_tensors), outs)
        return self._start(
            "all_to_all",
            outs,
            partial(shapes.all_to_all, outputs=outs, inputs=inputs),
            asked(*given, **named).limit,
            inputs,
        )

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *given: Any,
        **named: Any,
    ) -> AiodistWork:
        """Send parts of the first axis from every rank to every rank; no sizes: equal parts."""
        out, tensor = plain(output), plain(input)
        if not (out.is_contiguous() and tensor.is_contiguous()):
            raise UsageError(
                "Tensors must be contiguous for all_to_all_single", hint="Send tensor.contiguous()"
            )
        (tensor,) = apart([tensor], [out])
        out_splits, in_splits = list(output_split_sizes or ()), list(input_split_sizes or ())
        return self._start(
            "all_to_all",
            [out],
            lambda pg, **more: pg.all_to_all(tensor, out, in_splits or None, out_splits or None, **more),
            asked(*given, **named).limit,
            [tensor],
        )

    alltoall_base = all_to_all_single

    def barrier(self, *given: Any, **named: Any) -> AiodistWork:
        """Return when all ranks have called it, and what this rank has issued before has ended."""
        limit = asked(*given, **named).limit
        return self._start("barrier", [], lambda pg, **more: pg.barrier(**more), limit)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have called it; the error names those that have not, and nothing breaks."""
        limit = self.ours.timeout if timeout is None else max(0.0, timeout.total_seconds())
        self._barriers += 1
        self.ours.portal.call(monitored_barrier, self.ours._group, self._barriers, limit, wait_all_ranks)

    # -- messages -------------------------------------------------------------------------------

    def send(self, tensors: Any, dst: int, tag: int = 0, **newer: Any) -> AiodistWork:
        """Send a tensor to a group rank."""
        pass_over("send", newer)
        tensor = one(tensors, "send")
        return self._start("send", [tensor], lambda pg, **more: pg.send(tensor, dst, tag, **more))

    def recv(self, tensors: Any, src: int, tag: int = 0, **newer: Any) -> AiodistWork:
        """Receive a tensor from a group rank, within the group's timeout."""
        pass_over("recv", newer)
        return self._recv("recv", tensors, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0, **newer: Any) -> AiodistWork:
        """Receive a tensor from any rank; `source_rank` of the Work says from which."""
        pass_over("recv_anysource", newer)
        return self._recv("recvAnySource", tensors, None, tag)

    def _recv(self, what: str, tensors: Any, src: int | None, tag: int) -> AiodistWork:
        tensor = one(tensors, what)
        return self._start(
            what,
            [tensor],
            lambda pg, **more: pg.recv(tensor, src, tag, **{"timeout": pg.timeout, **more}),
            None,
        )

    # -- how calls go to the loop -----------------------------------------------------------------

    def _start(
        self,
        what: str,
        outputs: list[Any],
        start: Start,
        limit: float | None = None,
        inputs: list[Any] | None = None,
    ) -> AiodistWork:
        """Put an operation on the loop."""
        return self._post(what, outputs, [start], limit, inputs)

    def _post(
        self,
        what: str,
        outputs: list[Any],
        starts: Sequence[Start],
        limit: float | None,
        inputs: list[Any] | None = None,
    ) -> AiodistWork:
        """Put these on the loop, in this order, as one Work. `inputs`: where they are not the outputs."""
        if self.ours._group._core.control.exposed:
            _refuse_bytes([*outputs, *(inputs or ())])
        if limit is not None:
            starts = [partial(start, timeout=limit) for start in starts]
        message = what in _MESSAGES
        within = "" if message else origin()
        own = not (message or within)  # a collective of the program itself
        try:
            group = (self._for_callbacks(within) if within else self.ours)._group
        except GroupClosed as error:
            raise as_torchs(error) from error
        self._issued += own
        portal = self.ours.portal
        over = self._profiled(what, outputs if inputs is None else inputs)
        calling = portal.calling()

        def issue(reply: Reply) -> None:
            before = list(self._flying) if own and what == "barrier" else []
            left, failed = len(starts) + len(before), None

            def over_with(count: int, error: BaseException | None, value: Any = None) -> None:
                nonlocal left, failed
                left, failed = left - count, failed or error
                if not left:  # none touches a tensor any more
                    over()
                    self._flying.discard(reply)
                    portal.settle(reply, value if failed is None and len(starts) == 1 else None, failed)

            def ended(work: Any) -> None:
                error = work.exception()
                over_with(1, error, None if error is not None else work.result())

            portal.watch(reply)
            if own:
                self._flying.add(reply)
            for other in before:
                other.tell(partial(_hear, other, over_with))
            if not starts:
                over_with(0, None)
            for number, start in enumerate(starts):
                try:
                    with calling:
                        work = start(group, async_op=True)
                except BaseException as error:
                    over_with(len(starts) - number, error)
                    break
                work.add_done_callback(ended)
                if reply.waited_for:  # as it is by now, where the call blocks
                    work._poll_for_thread()

        try:
            reply = portal.post(issue)
        except GroupClosed as error:  # destroyed, or a forked child's parent has it
            raise as_torchs(error) from error
        in_order = self._in_order if own else None
        return AiodistWork(reply, outputs, f"{what} of group {self._name}", in_order, within)

    def _for_callbacks(self, within: str) -> SyncProcessGroup:
        """The group for what the callbacks of a group issue; made when the first one does so."""
        if within not in self._second:
            made = self.ours.new_group(
                list(range(self.ours.size)),
                timeout=self.ours.timeout,
                name=f"{self.ours.name}, in callbacks of {within}",
                use_local_synchronization=True,
            )
            assert made is not None
            self._second[within] = made
        return self._second[within]

    def _profiled(self, what: str, tensors: list[Any]) -> Callable[[], object]:
        """Begin a record of torch's profiler, where it runs → what ends it, in any thread."""
        if not torch.autograd._profiler_enabled():
            return _nothing
        title = f"{self.asked_as}:{what}"
        record = torch.autograd._record_function_with_args_enter(title, *tensors)
        return once(partial(torch.autograd._record_function_with_args_exit, record))

    def _start_coalescing(self, device: Any = None) -> None:
        """Refuse: batches of a device are in C++. Those without one are coalesced calls."""
        raise UsageError("coalescing on a device is NCCL's way", hint="Leave the device out")

    # -- what torch asks of a group ---------------------------------------------------------------

    def name(self) -> str:
        """The backend's name, as the program has asked for it."""
        return self.asked_as

    _get_backend_name = name

    def getBackendName(self) -> str:
        """The backend's name for C++, which asks a group that calls itself gloo for gloo's own innards."""
        return "aiodist"

    def rank(self) -> int:
        """This process's rank in the group."""
        return int(self.ours.rank)

    getRank = rank

    def size(self) -> int:
        """Number of ranks."""
        return int(self.ours.size)

    getSize = size

    def getGroupName(self) -> str:
        """torch's name for the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Take another name."""
        self._name = self._in_order.name = name

    _set_group_name = setGroupName

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives this rank has issued: by it, people see which rank lags behind."""
        return self._issued

    def getGroupDesc(self) -> str:
        """The description that torch has given the group."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Take another description."""
        self._desc = desc

    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> str:
        """torch's name for the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The description that torch has given the group."""
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in self._served]

    @property
    def _served(self) -> list[str]:
        return ["cpu"] if self.ours.device is None else ["cpu", "cuda"]

    def get_backend(self, device: Any) -> AiodistProcessGroup:
        """The backend of operations on a device: the group itself."""
        if torch.device(device).type not in self._served:
            raise RuntimeError(f"group {self._name} of aiodist takes no tensors on {device}")
        return self

    _get_backend = get_backend

    supports_reconfigure = False
    supports_window = False
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Whether torch may ask for memory of ours: no."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of operations that say nothing else."""
        for group in self._all():
            group.portal.call(setattr, group._group, "timeout", timeout.total_seconds())

    setTimeout = _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Ignore it, as torch asks of backends that have no such thing: it is for work that is under way."""

    def shutdown(self) -> None:
        """Close the group, once what is in flight here has ended: receives of what nobody sent at once.

        Who waited for errors has heard of them.
        """
        for group in self._all():
            with contextlib.suppress(AiodistError):
                group.close()

    def abort(self) -> None:
        """End the group at once, on all ranks: all that is in flight fails."""
        for group in self._all():
            group.abort("torch's abort()")

    def _all(self) -> list[SyncProcessGroup]:
        """The group, and behind it those for what callbacks issue; the last one first."""
        return [*reversed(self._second.values()), self.ours]


_MESSAGES = ("send", "recv", "recvAnySource")
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_QUOTIENT = "for AVG"
"""What ranks must agree on beside the sum of integers that each of them divides then."""


def _refuse_bytes(tensors: list[Any]) -> None:
    """Refuse bytes in a job that anybody may join or alter: torch unpickles such tensors, and who makes them
    runs code here."""
    if any(tensor.dtype in (torch.uint8, torch.int8) for tensor in tensors):
        raise UsageError(
            "tensors of bytes, as torch sends objects, are refused in a job without a secret that other "
            "hosts can reach: torch unpickles them, and those hosts could run code here",
            hint="Set AIODIST_SECRET to the same on every host, or use TLS",
        )


def _nothing() -> None:
    pass


def _hear(other: Reply, over_with: Callable[[int, BaseException | None], None]) -> None:
    over_with(1, other.error)


def _all_reduce(tensor: Any, pg: ProcessGroup, op: Any, detail: str = "", **more: Any) -> Any:
    if detail:
        return shapes.all_reduce(pg, tensor, op, detail=detail, **more)
    return pg.all_reduce(tensor, op, **more)


def _reduce(tensor: Any, root: int, pg: ProcessGroup, op: Any, detail: str = "", **more: Any) -> Any:
    if detail:
        return shapes.reduce(pg, tensor, root, op, detail=detail, **more)
    return pg.reduce(tensor, root, op, **more)


def _all_reduce_quantized(tensor: Any, options: dict[str, Any], pg: ProcessGroup, **more: Any) -> Any:
    return pg.all_reduce_quantized(tensor, ReduceOp.AVG, **options, **more)


def _gathering(out: Any, tensor: Any) -> Start:
    out, tensor = fitting(out, tensor)
    return partial(shapes.all_gather_into_tensor, output=out, tensor=tensor)


def _gather_single(tensor: Any, out: Any, root: int, pg: ProcessGroup, **more: Any) -> Any:
    # Flat on all ranks: those without an output cannot know whether it has the shape of joined inputs.
    return pg.gather(tensor.reshape(-1), root, None if out is None else out.view(-1), **more)


def _scattering(op: Any, tensor: Any, out: Any) -> Start:
    given, part = fitting(tensor, out)
    return _reducing(op, part, partial(shapes.reduce_scatter_tensor, output=part, tensor=given))


def _reducing(op: Any, out: Any, start: Callable[..., Any], gets: bool = True) -> Start:
    """A reduction by an op. The average of integers is the quotient of their sum, as NCCL has it.

    Args:
        out: the tensor that gets the result, or one like it.
        start: issues it, given the group and `op`; and for an average `detail`, which ranks must agree on.
        gets: whether this rank gets the result.
    """
    if op is not ReduceOp.AVG or out.device.type != "cpu" or out.dtype not in _INTEGERS:
        return partial(start, op=op)

    def started(pg: ProcessGroup, **more: Any) -> Any:
        work = start(pg, op=ReduceOp.SUM, detail=_QUOTIENT, **more)
        if gets:
            _afterwards(work, out, lambda: out.div_(pg.size, rounding_mode="trunc"))
        return work

    return started


def _copied(out: Any, written: Any, start: Start) -> Start:
    """An operation that writes into one tensor, and then copies it into another, if that is another."""
    if written is out:
        return start

    def started(pg: ProcessGroup, **more: Any) -> Any:
        work = start(pg, **more)
        _afterwards(work, out, lambda: out.copy_(written))
        return work

    return started


def _afterwards(work: Any, out: Any, change: Callable[[], object]) -> None:
    """Have a tensor changed when an operation has ended well, on the loop: also one of inference mode, which
    is its caller's and not the loop's."""

    def ended(done: Any) -> None:
        if done.exception() is None:
            with torch.inference_mode(out.is_inference()):
                change()

    work.add_done_callback(ended)


def _inner(lists: Any, what: str) -> list[Any]:
    """The one list of a list of lists, or the list that is given bare."""
    if lists and all(isinstance(one, torch.Tensor) for one in lists):
        return all_of(lists)
    if len(lists) != 1:
        raise UsageError(f"{what} takes one list of tensors a rank, not {len(lists)}")
    return all_of(lists[0])
