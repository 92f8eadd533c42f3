"""The collectives that users call on a group: each checks its arguments and issues one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.group.core import GroupCore
from aiodist.group.requests import Op, exchange, request
from aiodist.timeouts import Timeout
from aiodist.types import NO_ROOT, Kind, ReduceOp
from aiodist.work import Work


class Collectives(GroupCore):
    """See `ProcessGroup` for what all calls have in common."""

    def _short_way(
        self,
        kind: Kind,
        tensor: Any,
        out: Any,
        timeout: Timeout,
        async_op: bool,
        op: Op | int = 0,
        root: int = NO_ROOT,
    ) -> Work[Any] | None:
        """Start a collective without what a plain array does not need; None where it is no case for that."""
        short = self._short
        if short is None or timeout is not None or self._batches.open:
            return None
        return short.start(kind, tensor, out, async_op, op, root)

    def all_reduce(
        self,
        tensor: Any,
        op: Op = ReduceOp.SUM,
        out: Any = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Reduce over all ranks; every rank gets the bitwise same result.

        Args:
            tensor: any shape, equal on all ranks. Overwritten with the result unless `out` is given.
            op: how elements combine.
            out: where the result goes instead; same shape and dtype. The input then survives a failure.

        Returns:
            → `tensor`, or `out`.
        """
        short = self._short
        if short is not None and timeout is None and not self._batches.open:
            started = short.start(Kind.all_reduce, tensor, out, async_op, op)
            if started is not None:
                return started
        return self._issue(request(Kind.all_reduce, self._here, tensor, out, op=op), timeout, async_op)

    def broadcast(
        self, tensor: Any, src: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """Copy `src`'s tensor to all ranks.

        Args:
            tensor: same shape and dtype on all ranks; read on `src`, overwritten elsewhere.
            src: group rank that has the data.

        Returns:
            → `tensor`.
        """
        return self._short_way(Kind.broadcast, tensor, None, timeout, async_op, root=src) or self._issue(
            request(Kind.broadcast, self._here, tensor, root=src), timeout, async_op
        )

    def reduce(
        self,
        tensor: Any,
        dst: int = 0,
        op: Op = ReduceOp.SUM,
        out: Any = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Reduce over all ranks to one.

        Args:
            tensor: same shape and dtype on all ranks. On `dst` it is overwritten with the result unless `out`
                is given; elsewhere it is left as it was.
            dst: group rank that gets the result.
            op: how elements combine.
            out: on `dst`, where the result goes instead.

        Returns:
            → `tensor` or `out` on `dst`, None elsewhere.
        """
        return self._short_way(Kind.reduce, tensor, out, timeout, async_op, op, dst) or self._issue(
            request(Kind.reduce, self._here, tensor, out, root=dst, op=op), timeout, async_op
        )

    def all_gather(
        self,
        tensor: Any,
        out: Any = None,
        sizes: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Every rank gets every rank's tensor.

        Args:
            tensor: same shape and dtype on all ranks; read. With `sizes`, same dtype and trailing shape.
            out: array of shape `(size, *tensor.shape)` for the result; a new one by default.
            sizes: rows of each rank's tensor, where they differ; the same list on all ranks.

        Returns:
            → array of shape `(size, *tensor.shape)`; row r is rank r's tensor. With `sizes`, all ranks' rows
            one after the other: `(sum(sizes), *tensor.shape[1:])`.
        """
        started = None
        if sizes is None:
            started = self._short_way(Kind.all_gather, tensor, out, timeout, async_op)
        return started or self._issue(
            request(Kind.all_gather, self._here, tensor, out, sizes=sizes), timeout, async_op
        )

    def reduce_scatter(
        self,
        tensor: Any,
        out: Any = None,
        op: Op = ReduceOp.SUM,
        sizes: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Reduce over all ranks, and give rank r the r-th part of the first axis.

        Args:
            tensor: same shape and dtype on all ranks; the first axis is divisible by `size`. Read.
            out: array of shape `(tensor.shape[0] // size, *tensor.shape[1:])`; a new one by default.
            op: how elements combine.
            sizes: rows of each rank's part, where they differ; the same list on all ranks. The first axis of
                `tensor` has as many rows as all of them, and `out` those of this rank.

        Returns:
            → this rank's part of the reduction.
        """
        started = None
        if sizes is None:
            started = self._short_way(Kind.reduce_scatter, tensor, out, timeout, async_op, op)
        return started or self._issue(
            request(Kind.reduce_scatter, self._here, tensor, out, op=op, sizes=sizes), timeout, async_op
        )

    def gather(
        self, tensor: Any, dst: int = 0, out: Any = None, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """One rank gets every rank's tensor.

        Args:
            tensor: same shape and dtype on all ranks; read.
            dst: group rank that gets them.
            out: on `dst`, array of shape `(size, *tensor.shape)` for the result; a new one by default.

        Returns:
            → on `dst`, array of shape `(size, *tensor.shape)`; None elsewhere.
        """
        return self._short_way(Kind.gather, tensor, out, timeout, async_op, root=dst) or self._issue(
            request(Kind.gather, self._here, tensor, out, root=dst), timeout, async_op
        )

    def scatter(
        self, out: Any, tensor: Any = None, src: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """Deal one rank's rows out to all ranks.

        Args:
            out: this rank's part; same shape and dtype on all ranks; overwritten.
            tensor: on `src`, array of shape `(size, *out.shape)`; row r goes to rank r. None elsewhere.
            src: group rank that has the data.

        Returns:
            → `out`.
        """
        return self._short_way(Kind.scatter, tensor, out, timeout, async_op, root=src) or self._issue(
            request(Kind.scatter, self._here, tensor, out, root=src), timeout, async_op
        )

    def all_to_all(
        self,
        tensor: Any,
        out: Any = None,
        in_splits: Sequence[int] | None = None,
        out_splits: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Every rank sends a part of the first axis to every rank.

        Args:
            tensor: read. Same dtype and trailing shape on all ranks.
            out: array for the result; a new one by default, of the size that `out_splits` says, or of the
                input's shape where there are no splits.
            in_splits: rows that go to each rank; None: equal parts.
            out_splits: rows that come from each rank; None: equal parts of `out`. What one rank sends and
                the other expects is compared for each pair. All ranks pass splits, or none does.

        Returns:
            → array of the parts that came, in rank order.
        """
        started = None
        if in_splits is None and out_splits is None:
            started = self._short_way(Kind.all_to_all, tensor, out, timeout, async_op)
        return started or self._issue(
            exchange(self._here, tensor, out, in_splits, out_splits), timeout, async_op
        )

    def barrier(self, *, timeout: Timeout = None, async_op: bool = False) -> Work[None]:
        """Return when all ranks have called it.

        Returns:
            → None.
        """
        short = self._short
        if short is not None and timeout is None and not self._batches.open:
            started = short.barrier(async_op)
            if started is not None:
                return started
        return self._issue(request(Kind.barrier, self._here), timeout, async_op)

    def monitored_barrier(
        self, timeout: Timeout = None, wait_all_ranks: bool = False, *, async_op: bool = False
    ) -> Work[None]:
        """A barrier for debugging, with torch's name. Like every operation here it names who is missing.

        Args:
            timeout: seconds until `CollectiveTimeout` names the ranks that did not come.
            wait_all_ranks: accepted for torch's sake: all missing ranks are named in any case.

        Returns:
            → None.
        """
        return self.barrier(timeout=timeout, async_op=async_op)
