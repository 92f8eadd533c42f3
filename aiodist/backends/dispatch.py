"""One group's backends, by where a tensor lies: `cpu:host,cuda:nccl`.

What has no tensor of the user's (barriers, objects, new groups) always goes to the host engine, which every
group has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aiodist.backends.base import (
    CAPABILITIES,
    Array,
    Backend,
    Numbers,
    Operation,
    Reports,
    Sent,
    ShortMessages,
    ShortWay,
)
from aiodist.backends.foreign import ForeignBackend
from aiodist.backends.host.backend import HostBackend
from aiodist.backends.staged import StagedBackend
from aiodist.backends.work import GroupState, Work

Part = ForeignBackend | StagedBackend
"""A backend that stands on the host backend of the same group."""


class Dispatch:
    """The executor of one group's operations by several backends.

    Args:
        name: what `get_backend` says.
        aliases: what else a new group may be asked for by.
        host: the host backend of the group.
        parts: by place, what else carries operations out; a place that is not there is the host's, if
            `takes_host`, or is refused.
        takes_host: tensors on the host may be passed, and go to the host backend.
        device: index of this process's CUDA device, where it takes tensors on one.
    """

    def __init__(
        self,
        name: str,
        aliases: frozenset[str],
        host: HostBackend,
        parts: Mapping[str, Part],
        takes_host: bool,
        device: int | None = None,
    ) -> None:
        self.name = name
        self.aliases = aliases
        self.opens = True
        self.device = device
        self._host = host
        self._takes_host = takes_host
        self._parts = dict(parts)
        self._by_place: dict[str, HostBackend | Part] = {"": host, **parts}
        if takes_host:
            self._by_place["cpu"] = host
        self._engines = list(dict.fromkeys(parts.values()))
        self._all: list[HostBackend | Part] = [host, *self._engines]
        self.places: Mapping[str, str] = {
            place: part.places.get(place, "") for place, part in self._by_place.items() if place
        }
        first = self._by_place.get("cpu", next(iter(parts.values())))
        self.capabilities = first.capabilities & CAPABILITIES
        for part in parts.values():
            if "regroups" not in part.capabilities:
                self.capabilities -= {"regroups"}

    async def open(self) -> None:
        """Become ready, with all members."""
        for part in self._all:
            await part.open()

    def submit(self, operation: Operation) -> None:
        """Start an operation."""
        call = operation.call
        # Marked ones are an engine's; others reach the host backend, sooner or later.
        if self.places.get(operation.place) and not call.message:
            self._host.skip(call.seq)
        self._by_place[operation.place].submit(operation)

    def off_loop(self, cost_ns: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        """Have the host backend do a job."""
        return self._host.off_loop(cost_ns, job, done)

    def reserve(self, seq: int) -> None:
        """Note a collective that is submitted later, without a tensor of the user's."""
        self._host.reserve(seq)

    def hold(self, operation: Operation) -> None:
        """Note an operation that is submitted later."""
        self._by_place[operation.place].hold(operation)

    def batch(self, begins: bool) -> None:
        """Begin or end a batch: what is submitted in it begins together."""
        for part in self._all:
            part.batch(begins)

    def abort(self, quiet: Callable[[], None]) -> None:
        """Stop everything; `quiet` is called when no buffer is touched any more."""
        for part in reversed(self._engines):  # the engines first: they stand on the host backend
            part.abort()
        self._host.abort(quiet)

    def retire(self) -> None:
        """Forget the group, which is gone for good."""
        for part in reversed(self._all):
            part.retire()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array on the host."""
        return self._host.empty(shape, dtype)

    def short_way(
        self, issuer: GroupState, numbers: Numbers, note: Callable[[Work[Any]], Operation]
    ) -> ShortWay | None:
        """The host backend's, where it takes users' tensors."""
        return self._host.short_way(issuer, numbers, note) if self._takes_host else None

    def short_messages(
        self,
        issuer: GroupState,
        numbers: Numbers,
        enter: Callable[[Operation], None],
        ended: Callable[[Operation], None],
    ) -> ShortMessages | None:
        """The host backend's, likewise."""
        return self._host.short_messages(issuer, numbers, enter, ended) if self._takes_host else None

    def seen(self, seq: int) -> set[int]:
        """The members that the host backend, which knows every collective, has seen to begin one."""
        return self._host.seen(seq)

    def unasked(self) -> int:
        """Those of the host engine; another one's may need more of this rank than their receives."""
        return self._host.unasked()

    def sent(self) -> Sent:
        """The messages sent by each engine, one after another."""
        return tuple(counts for part in self._all for counts in part.sent())

    def rank_left(self, rank: int, sent: Sent | None) -> None:
        """Have all engines note it: the messages of some go by internal groups."""
        for part in self._all:
            own = len(part.sent())
            part.rank_left(rank, None if sent is None else sent[:own])
            sent = None if sent is None else sent[own:]

    def close_receives(self, error: Callable[[], BaseException]) -> None:
        """End the receives for which nothing has come, of all engines."""
        for part in self._all:
            part.close_receives(error)

    def take_in(self) -> bool:
        """Have the host backend end what peers have done; other engines report by themselves."""
        return self._host.take_in()

    def heard_nobody(self) -> bool:
        """Whether the last collective ended with no message of another member (`Backend.heard_nobody`)."""
        return self._host.heard_nobody()

    def divide(self, context: int, members: Sequence[int]) -> None:
        """Note that all members make another group of this one."""
        for part in self._all:
            part.divide(context, members)

    def renounce(self, context: int, ranks: Sequence[int]) -> None:
        """Note that this rank never makes a group that others may have made."""
        for part in self._all:
            part.renounce(context, ranks)

    async def bystand(self) -> None:
        """Take the part of a non-member while members make another group."""
        for part in self._all:
            await part.bystand()

    def statistics(self) -> dict[str, dict[str, int]]:
        """The host backend's: it knows every operation."""
        return self._host.statistics()

    def subgroup(self, context: int, ranks: Sequence[int], reports: Reports, whole: bool = False) -> Backend:
        """The backend of a new group."""
        host = self._host.subgroup(context, ranks, reports)
        children = {part: part.child(host, whole) for part in self._engines}
        parts = {place: children[part] for place, part in self._parts.items()}
        return Dispatch(self.name, self.aliases, host, parts, self._takes_host, self.device)
