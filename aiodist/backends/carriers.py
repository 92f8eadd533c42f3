"""The host engine and the carriers of one group, by where a tensor lies (`cpu:host,cuda:nccl`).

What has no tensor of the user's (barriers, objects, new groups) always goes to the host engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aiodist.backends.base import CAPABILITIES, Carrier, Executor, HostEngine, Operation, Reports, Sent


class Carriers:
    """The host engine of one group, and its carriers.

    Args:
        name: what `get_backend` says.
        aliases: what else a new group of the same kind may be asked for by.
        host: the host engine of the group.
        parts: by place, 'cpu' or 'cuda', the carrier of the operations on tensors there. One may have both.
        takes_host: tensors on the host may be passed, and go to the host engine.
        device: index of this process's CUDA device, where it takes tensors on one.

    Attributes:
        parts: as given.
        submit: starts an operation. It has begun when this returns.
        places: where tensors may lie; and what the call's signature says of it: see `Carrier`.
        capabilities: what the conformance checks may ask of the group; of `CAPABILITIES`.
    """

    submit: Callable[[Operation], None]

    def __init__(
        self,
        name: str,
        aliases: frozenset[str],
        host: HostEngine,
        parts: Mapping[str, Carrier],
        takes_host: bool = True,
        device: int | None = None,
    ) -> None:
        self.name, self.aliases, self.device = name, aliases, device
        self.host, self.takes_host = host, takes_host
        self.parts = dict(parts)
        self._distinct = list(dict.fromkeys(parts.values()))
        self._all: list[Executor] = [host, *self._distinct]
        self._by_place: dict[str, Executor] = {"": host, **parts}
        self.places = {place: carrier.places.get(place, "") for place, carrier in parts.items()}
        self.capabilities = CAPABILITIES
        if takes_host:
            self._by_place["cpu"] = host
            self.places["cpu"] = ""
        elif parts:
            self.capabilities &= parts.get("cpu", next(iter(parts.values()))).capabilities
        if any("regroups" not in carrier.capabilities for carrier in self._distinct):
            self.capabilities -= {"regroups"}
        self.submit = self._submit_by_place if parts else host.submit  # nearly always: no step between

    @property
    def opens(self) -> bool:
        """Whether there is something to connect: `open` and `wait_outside` do something."""
        return bool(self._distinct)

    async def open(self) -> None:
        """Become ready, with all members: the group is not used before."""
        for carrier in self._distinct:
            await carrier.open()

    async def wait_outside(self) -> None:
        """Take the part of a non-member while members of this group make another one."""
        for carrier in self._distinct:
            await carrier.wait_outside()

    def subgroup(self, context: int, ranks: Sequence[int], reports: Reports, whole: bool = False) -> Carriers:
        """The host engine and the carriers of a new group; to be opened.

        Args:
            context: 64-bit number that names the group at its epoch, equal on all members.
            ranks: global ranks of the members, in group order; this process is among them.
            reports: the new group.
            whole: all members of this group take part in making it, those left out by `wait_outside`.
        """
        host = self.host.subgroup(context, ranks, reports)
        children = {carrier: carrier.child(host, whole) for carrier in self._distinct}
        parts = {place: children[carrier] for place, carrier in self.parts.items()}
        return Carriers(self.name, self.aliases, host, parts, self.takes_host, self.device)

    # ── operations ───────────────────────────────────────────────────────────────────────────────────

    def _submit_by_place(self, operation: Operation) -> None:
        call = operation.call
        # Marked ones are a carrier's; others reach the host engine, sooner or later.
        if self.places.get(operation.place) and not call.message:
            self.host.skip(call.seq)
        self._by_place[operation.place].submit(operation)

    def hold(self, operation: Operation) -> None:
        """Note an operation that was issued and is submitted later (`coalesce`); see `Executor.hold`."""
        self._by_place[operation.place].hold(operation)

    def batch(self, begins: bool) -> None:
        """Begin or end a batch: what is submitted in it may begin together, at its end."""
        for carrier in self._distinct:
            carrier.batch(begins)

    def splitting(self, context: int, members: Sequence[int]) -> None:
        """Note that all members make another group of this one; see `Carrier.splitting`."""
        for carrier in self._distinct:
            carrier.splitting(context, members)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    def abort(self, released: Callable[[], None]) -> None:
        """Stop everything; `released` is called when no buffer is touched any more (`HostEngine.abort`)."""
        for carrier in reversed(self._distinct):  # they stand on the host engine
            carrier.abort()
        self.host.abort(released)

    def retire(self) -> None:
        """Forget the group, which is gone for good, and drop what may still arrive for it."""
        for engine in reversed(self._all):
            engine.retire()

    def will_not_join(self, context: int, ranks: Sequence[int]) -> None:
        """Note that this rank never makes a group that others may make; see `Executor.will_not_join`."""
        for engine in self._all:
            engine.will_not_join(context, ranks)

    # ── messages that are still under way, when members close the group ──────────────────────────────

    def sent(self) -> Sent:
        """The number of messages that this rank has sent to each member, by the host engine and each carrier
        in turn: those of some carriers go by internal groups."""
        return tuple(counts for engine in self._all for counts in engine.sent())

    def rank_left(self, rank: int, sent: Sent | None) -> None:
        """Note that a member has closed this group; see `Executor.rank_left`."""
        for engine in self._all:
            own = len(engine.sent())
            engine.rank_left(rank, None if sent is None else sent[:own])
            sent = None if sent is None else sent[own:]

    def close_receives(self, error: Callable[[], BaseException]) -> None:
        """End the receives for which nothing has come; see `Executor.close_receives`."""
        for engine in self._all:
            engine.close_receives(error)
