"""The backend that carries out operations on device tensors by the host backend of the same group.

    device ── copied out ─▶ pinned memory ── host operation ─▶ pinned memory ── copied in ─▶ device
              a thread each: the loop waits for neither

The host operation has the user's number and call, so ranks with tensors on the host and on devices understand
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from aiodist.backends.base import CAPABILITIES, Array, Operation
from aiodist.backends.foreign.check import Check
from aiodist.backends.host.backend import HostBackend
from aiodist.backends.staged.copier import Copier, Pairs
from aiodist.errors import GroupBroken
from aiodist.types import Kind

Given = Array | list[Array] | None


class StagedBackend:
    """See the module.

    Args:
        host: the host backend of the group.
        device: index of this process's CUDA device.
        copier: of the process; None makes it, at the first operation.
    """

    name = "host"
    places: Mapping[str, str] = {"cuda": ""}
    capabilities = CAPABILITIES

    def __init__(self, host: HostBackend, device: int | None, copier: Copier | None = None) -> None:
        self._host = host
        self._device = 0 if device is None else device
        self._copier = Copier(self._device) if copier is None else copier
        self._copier.use()
        self._copying = 0
        self._dead = False
        self._quiet: Callable[[], None] | None = None

    async def open(self) -> None:
        """The host backend is."""

    def divide(self, context: int, members: Sequence[int]) -> None:
        """Nothing is shared between groups."""

    async def bystand(self) -> None:
        """Nothing is asked of those who are no members."""

    def submit(self, operation: Operation) -> None:
        """Start an operation: its tensors are on their way to the host when this returns."""
        try:
            self._begin(operation)
        except Exception as error:
            self._host.failed(error)

    def reserve(self, seq: int, operation: Operation | None = None) -> None:
        """A collective that will be submitted later."""
        self._host.reserve(seq, operation)

    def batch(self, begins: bool) -> None:
        """There is nothing to gain."""

    def abort(self, quiet: Callable[[], None]) -> None:
        """Stop everything; `quiet` is called when the device copies nothing any more."""
        self._dead = True
        self._quiet = quiet
        self._quietened()

    def retire(self) -> None:
        """The group is gone for good."""
        self._copier.leave()

    def child(self, host: HostBackend, whole: bool) -> StagedBackend:
        """The backend of a group made of this one's members."""
        return StagedBackend(host, self._device, self._copier)

    # ── one operation ────────────────────────────────────────────────────────────────────────────────

    def _begin(self, operation: Operation) -> None:
        copier = self._copier
        marks = copier.marks(operation)
        call = operation.call
        outward: Pairs = []
        inward: Pairs = []
        alike = operation.source is operation.target
        reads = operation.source is not None and not (
            call.kind is Kind.broadcast and call.root != self._host.rank
        )
        writes = operation.target is not None and not (
            call.kind is Kind.broadcast and call.root == self._host.rank
        )
        source = self._stand_in(operation.source, outward if reads else None)
        if alike:
            target = source
            if writes and source is not None:
                inward += _paired(operation.target, source)
        else:
            target = self._stand_in(operation.target, None)
            if writes and target is not None:
                inward += _paired(operation.target, target)
        step = Check(
            call,
            operation.work,
            _later,
            source,
            target,
            peer=operation.peer,
            tag=operation.tag,
            senders=operation.senders,
        )
        step.factor, step.sizes, step.sent = operation.factor, operation.sizes, operation.sent
        step.then = partial(self._moved, operation, step, inward, marks)
        if not outward:
            self._host.submit(step)
            return
        if call.kind is not Kind.send:
            self._host.reserve(call.seq, step)
        self._copy(copier.out, outward, marks, partial(self._host.submit, step))

    def _stand_in(self, given: Given, outward: Pairs | None) -> Given:
        """Pinned memory for tensors, each contiguous and in its shape."""
        if given is None:
            return None
        pinned = [self._copier.pinned(array) for array in (given if isinstance(given, list) else [given])]
        if outward is not None:
            outward += _paired(given, pinned)
        return pinned if isinstance(given, list) else pinned[0]

    def _moved(self, operation: Operation, step: Check, inward: Pairs, marks: list[Any]) -> None:
        """The host operation has ended well."""
        if operation.call.kind is Kind.recv:
            operation.result = step.result
        if inward:
            self._copy(self._copier.into, inward, marks, operation.succeed)
        else:
            operation.succeed()

    def _copy(
        self,
        way: Callable[[Pairs, list[Any], Callable[[Exception | None], None]], None],
        pairs: Pairs,
        marks: list[Any],
        then: Callable[[], None],
    ) -> None:
        self._copying += 1

        def copied(error: Exception | None) -> None:
            self._copying -= 1
            if self._dead:
                self._quietened()
            elif error is not None:
                broken = GroupBroken(f"copying to or from the device failed: {error}")
                broken.__cause__ = error
                self._host.reports.broken(broken)
            else:
                then()

        way(pairs, marks, partial(self._copier.post, self._host.loop, copied))

    def _quietened(self) -> None:
        if self._quiet is not None and not self._copying:
            quiet, self._quiet = self._quiet, None
            quiet()


def _paired(given: Given, stand_in: Given) -> Pairs:
    """(on the device, on the host), one by one."""
    one = given if isinstance(given, list) else [given]
    other = stand_in if isinstance(stand_in, list) else [stand_in]
    return [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None and a.size]


def _later() -> None:
    """What follows needs the operation itself."""
