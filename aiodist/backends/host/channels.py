"""One group on one rank, as its operations need it: the channels to its members, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from aiodist.backends.base import Operation, Reports
from aiodist.backends.host.driving import ChannelDriver
from aiodist.backends.host.resources import Resources
from aiodist.backends.release import BuffersInUse
from aiodist.backends.work import Work
from aiodist.base.errors import GroupBroken
from aiodist.base.types import Call, describe_signature
from aiodist.transport import Incoming, Key, Outgoing


class Channels:
    """The channels of one group. Peers are group ranks.

    Args:
        resources: of the process.
        context: 64-bit number of the group at its epoch.
        ranks: global ranks of the members, in group order.
        reports: the group.
        crowding: global ranks that offer more messages than are remembered: see `Observer.crowded`.

    Attributes:
        rank: this process's group rank, of `size`.
        release: says when nothing touches the group's buffers.
        crowded: members that offer more messages than are remembered.
        shut: members that have closed the group, and take nothing more.
    """

    def __init__(
        self,
        resources: Resources,
        context: int,
        ranks: Sequence[int],
        reports: Reports,
        crowding: Collection[int],
    ) -> None:
        self.resources = resources
        self.loop = resources.loop
        self.context = context
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(resources.rank)
        self.reports = reports
        self.release = BuffersInUse()
        self._group_rank = {rank: index for index, rank in enumerate(self.ranks)}
        self.crowded = {self._group_rank[rank] for rank in crowding if rank in self._group_rank}
        self.shut: set[int] = set()
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}

    def group_rank(self, rank: int) -> int | None:
        """The group rank of a global rank; None for a non-member."""
        return self._group_rank.get(rank)

    def outgoing(self, peer: int) -> Outgoing:
        """The channel to a member."""
        channel = self._outgoing.get(peer)
        if channel is None:
            channel = self._outgoing[peer] = self.resources.endpoint.outgoing(self.ranks[peer])
            if peer in self.shut:
                channel.shut(self.context)
        return channel

    def take_nothing(self, peer: int) -> list[Key]:
        """Note that a member takes nothing more → the names of the messages that are not sent to it any more,
        and whose buffers are free. What it has asked for goes on."""
        self.shut.add(peer)
        channel = self._outgoing.get(peer)
        return [] if channel is None else channel.shut(self.context)

    def incoming(self, peer: int) -> Incoming:
        """The channel from a member."""
        channel = self._incoming.get(peer)
        if channel is None:
            channel = self._incoming[peer] = self.resources.endpoint.incoming(self.ranks[peer])
        return channel

    def seals(self, operation: Operation) -> bool:
        """Whether an operation's bytes have to be authenticated on their way."""
        return operation.sealed or operation.call.dtype in self.resources.seals

    def drive(self, work: Work[Any], channel: Outgoing | Incoming) -> None:
        """Have an await of a message's Work poll the channel that it goes over. One to itself moves by itself
        when the loop turns."""
        poller = self.resources.poller
        if poller.polls and channel.rank != self.resources.rank:
            work._driven_by(ChannelDriver(poller, channel, work))

    def off_loop(self, cost_ns: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        """Do a job on an operation's buffers, and hold the group's release meanwhile. A job that fails breaks
        the group. See `Offload.run`."""
        self.release.hold()

        def over() -> None:
            done()
            self.release.let_go()

        if not self.resources.offload.run(cost_ns, job, over, self.failed):
            return False
        self.release.let_go()
        return True

    def guard(self, step: Callable[..., object], *arguments: Any) -> None:
        """Do a step that must not raise: if it does, the group breaks."""
        try:
            step(*arguments)
        except Exception as error:
            self.failed(error)

    def differ(self, call: Call, peer: int, sent: int, expected: int | None) -> None:
        """Report that a member sends so many bytes, and this rank expects so many others, or nothing (None):
        agreed on all that ranks must agree on, so it is the splits."""
        name, itemsize = call.kind.name, call.dtype.itemsize
        self.reports.peer_mismatch(
            {
                peer: f"{name} sends {_elements(sent, itemsize)} to rank {self.ranks[self.rank]}",
                self.rank: f"{name} expects {_elements(expected, itemsize)} from rank {self.ranks[peer]}",
            }
        )

    def unfit(self, peer: int, number: int, mine: bytes, theirs: bytes, receive: Operation) -> None:
        """Report that a message of a member does not fit its receive, by their signatures.

        Args:
            number: of the message among those of its source and tag.
            receive: the receive.
        """
        more = f"tag={receive.tag}, number={number})"
        wanted = describe_signature(mine).replace("send(", "recv(", 1)
        expected = f"{wanted[:-1]}, src={peer}, {more}{receive.work._line()}"
        sent = f"{describe_signature(theirs)[:-1]}, dst={self.rank}, {more}"
        both = {self.rank: f"{sent} to itself, and {expected} for it"}
        self.reports.peer_mismatch(both if peer == self.rank else {peer: sent, self.rank: expected})

    def failed(self, error: Exception) -> None:
        """Break the group: something raised that must not, and no result can be trusted."""
        if not isinstance(error, GroupBroken):
            broken = GroupBroken(
                f"rank {self.ranks[self.rank]} failed inside: {type(error).__name__}: {error}"
            )
            broken.__cause__ = error
            error = broken
        self.reports.broken(error)


def _elements(nbytes: int | None, itemsize: int) -> str:
    """'1 element', '9 elements'; bytes, where they are no whole number of elements."""
    if nbytes is None:
        return "nothing"
    count, rest = divmod(nbytes, itemsize)
    if rest:
        return f"{nbytes} bytes"
    return f"{count} element{'' if count == 1 else 's'}"
