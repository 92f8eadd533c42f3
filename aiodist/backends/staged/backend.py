"""The backend that carries out operations on device tensors by the host backend of the same group.

    device ── copied out ─▶ host's memory ── host operation ─▶ host's memory ── copied in ─▶ device
              a thread each: the loop waits for neither

The host operation has the user's number and call, so ranks with tensors on the host and on devices understand
each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.base import CAPABILITIES, Array, Carrier, Operation
from aiodist.backends.buffers import Allocate, Buffers, buffers
from aiodist.backends.host.backend import HostBackend
from aiodist.backends.inner import InnerOperation
from aiodist.backends.staged.copier import Copier, Pairs, Transfer
from aiodist.backends.threads import post
from aiodist.base.errors import GroupBroken
from aiodist.base.types import Kind


class StagedBackend(Carrier):
    """The staged backend of one group; see the module.

    Args:
        host: the host backend of the group.
        device: index of this process's CUDA device.
        copier: of the world's groups; None makes it.
    """

    places: Mapping[str, str] = {"cuda": ""}
    capabilities = CAPABILITIES

    def __init__(self, host: HostBackend, device: int, copier: Copier | None = None) -> None:
        self._host = host
        self._device = device
        self._copier = Copier(device) if copier is None else copier
        self._copier.use()
        self._names = itertools.count()
        self._moving: dict[int, Transfer] = {}
        self._dead = False

    async def open(self) -> None:
        """Open the device; the host backend is open already."""
        await self._copier.open(self._host.channels.loop)

    def submit(self, operation: Operation) -> None:
        """Start an operation."""
        self._host.channels.guard(self._begin, operation)

    def hold(self, operation: Operation) -> None:
        """Note an operation that is submitted later: it is copied after what the caller's streams have."""
        self._host.hold(operation)
        try:
            operation.noted = self._copier.marks(operation)
        except Exception as error:
            self._host.failed(error)

    def abort(self) -> None:
        """Stop everything; the group's release is held while something is copied."""
        self._dead = True
        for name, transfer in list(self._moving.items()):
            if transfer.cancel():
                del self._moving[name]
                self._host.release.let_go()

    def retire(self) -> None:
        """Forget the group, which is gone for good."""
        self._copier.leave()

    def child(self, host: HostBackend, whole: bool) -> StagedBackend:
        """The backend of a group made of this one's members."""
        return StagedBackend(host, self._device, self._copier)

    # ── one operation ────────────────────────────────────────────────────────────────────────────────

    def _begin(self, operation: Operation) -> None:
        copier, call = self._copier, operation.call
        marks = copier.marks(operation) if operation.noted is None else operation.noted
        if call.kind is Kind.recv:
            # It takes its place among the receives at once, also those of tensors on the host: so into memory
            # that costs nothing to get. Pinned memory may.
            self._carry_out(operation, self._staged(operation, np.empty), marks)
            return
        if not call.message:
            self._host.reserve(call.seq, operation)
        made: list[Buffers] = []

        def outward() -> Pairs:
            made.append(self._staged(operation, copier.pinned))
            return _worth([(there, here) for here, there in made[0].before])

        self._move(True, marks, outward, lambda: self._carry_out(operation, made[0], marks))

    def _staged(self, operation: Operation, allocate: Allocate) -> Buffers:
        """Memory of the host in the place of an operation's tensors."""
        return buffers(operation, self._host.rank, self._host.size, allocate, own=True)

    def _carry_out(self, operation: Operation, staging: Buffers, marks: Sequence[Any]) -> None:
        """Submit the host operation: all that it reads is on the host."""
        step = InnerOperation(
            *(operation.call, operation.work, staging.source, staging.target),
            peer=operation.peer,
            tag=operation.tag,
            senders=operation.senders,
            factor=operation.factor,
            source_sizes=operation.source_sizes,
            target_sizes=operation.target_sizes,
            of=operation if operation.call.kind is Kind.recv else None,
        )
        step.then = partial(self._carried_out, operation, step, _worth(staging.after), marks)
        self._host.submit(step)

    def _carried_out(
        self, operation: Operation, step: InnerOperation, inward: Pairs, marks: Sequence[Any]
    ) -> None:
        """Copy the result back: the host operation has ended well."""
        if operation.call.kind is Kind.recv:
            operation.result = step.result
        if not inward:
            operation.succeed()
        elif not self._dead:
            self._move(False, marks, lambda: inward, operation.succeed)

    def _move(
        self,
        to_host: bool,
        marks: Sequence[Any],
        pairs: Callable[[], Pairs],
        then: Callable[[], None],
    ) -> None:
        name = next(self._names)
        done = partial(post, self._host.channels.loop, self._moved, name, then)
        transfer = self._moving[name] = Transfer(marks, pairs, done)
        self._host.release.hold()
        self._copier.move(transfer, to_host)

    def _moved(self, name: int, then: Callable[[], None], error: Exception | None) -> None:
        if self._moving.pop(name, None) is None:
            return  # cancelled, after it had failed without touching anything
        if self._dead:
            pass
        elif error is None:
            then()
        else:
            rank = self._host.ranks[self._host.rank]
            broken = GroupBroken(f"rank {rank} could not copy between its device and the host: {error}")
            broken.__cause__ = error
            self._host.reports.broken(broken)
        self._host.release.let_go()


def _worth(pairs: Sequence[tuple[Array, Array]]) -> Pairs:
    """The pairs that are not empty."""
    return [pair for pair in pairs if pair[0].size]
