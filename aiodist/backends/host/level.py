"""A host group inside a user's group, with a context and numbers of its own.

Its numbers are taken when the user's operation takes its own, so they are alike on all ranks, whatever ends
first. A call in it carries the user's number where offers are, and the user's call in its `detail`: it agrees
only where the user's calls do (law 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from aiodist.backends.base import HostEngine, Reports, Sent
from aiodist.backends.host.channels import Channels
from aiodist.base.errors import GroupBroken
from aiodist.base.types import Call

_OFFER = 0xFFFFFFFF


def carried(call: Call) -> tuple[int, str]:
    """The `offer` and `detail` of an internal call that stands for a user's."""
    return call.seq & _OFFER, f"of #{call.seq} {call.in_full()}"


def user_of(signature: bytes) -> int:
    """The user's number in the signature of an internal call. It is where offers are, which ranks need not
    agree on and nobody makes here: so it can be read also where calls differ."""
    return int.from_bytes(signature[-4:], "little")


def context_within(context: int, name: str, ranks: Sequence[int]) -> int:
    """The context of an internal group of a user's group, by its purpose and its global ranks."""
    text = f"{context}/{name}/{','.join(map(str, ranks))}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


_REMEMBERED = 1024  # internal numbers whose user's number can still be told


class Groups(Protocol):
    """All host groups of a process.

    Attributes:
        crowding: global ranks that offer more messages than are remembered.
        gone: those that have closed their groups, or are lost.
    """

    crowding: set[int]
    gone: set[int]

    def backend(self, context: int, ranks: Sequence[int], reports: Reports) -> HostEngine:
        """Make the host engine of a group, and hand over what arrived for it before."""

    def retire(self, context: int) -> None:
        """Forget a group that is gone for good, or was never made."""

    def will_not_join(self, context: int) -> None:
        """Note that this process never makes a group that others may have made."""


class InternalGroup:
    """One internal group of a user's group; what its backend reports is reported of the user's operation.

    Args:
        channels: of the user's group, whose release is held while this one touches buffers.
        groups: makes the backend.
        name: what it is for: 'inner', 'outer', 'checks'.
        members: group ranks, in the order of this internal group.
        disagreed: called as (number, group rank, signature) with a member that has issued another operation
            under a number of the user's.

    Attributes:
        issued: how many operations it has had on this rank.
    """

    def __init__(
        self,
        channels: Channels,
        groups: Groups,
        name: str,
        members: Sequence[int],
        disagreed: Callable[[int, int, bytes], None],
    ) -> None:
        self.members = members
        self.ranks = [channels.ranks[member] for member in members]
        self.context = context_within(channels.context, name, self.ranks)
        self._release, self._reports = channels.release, channels.reports
        self._disagreed = disagreed
        self._groups = groups
        self._backend: HostEngine | None = None
        self.issued = 0
        self._users: dict[int, int] = {}

    @property
    def backend(self) -> HostEngine:
        """The group's backend, made when it is first needed."""
        if self._backend is None:
            self._backend = self._groups.backend(self.context, self.ranks, self)
        return self._backend

    def prepare(self) -> None:
        """Make its backend now: if there is no room for it that is found before the group is used.

        Raises:
            GroupBroken: there is none.
        """
        assert self.backend is not None

    def number(self, user: int) -> int:
        """Take the next number for a part of the user's operation `user`."""
        number = self.issued
        self.issued = number + 1
        self._users[number] = user
        self._users.pop(number - _REMEMBERED, None)
        self.backend.reserve(number)
        return number

    def halt(self) -> None:
        """Take part in nothing any more."""
        if self._backend is not None:
            self._backend.halt()

    def sent(self) -> Sent:
        """The number of messages sent to each member; see `HostEngine`."""
        return ((),) if self._backend is None else self._backend.sent()

    def rank_left(self, rank: int, sent: Sent | None) -> None:
        """Note that a member has closed the user's group; see `HostEngine`."""
        if rank in self.ranks:
            self.backend.rank_left(rank, sent)

    def close_receives(self, error: Callable[[], BaseException]) -> None:
        """End the receives for which nothing has come here; see `HostEngine`."""
        if self._backend is not None:
            self._backend.close_receives(error)

    def abort(self) -> None:
        """Stop everything; the user's group's release is held while anything here touches a buffer."""
        if self._backend is not None:
            self._release.hold()
            self._backend.abort(self._release.let_go)

    def retire(self) -> None:
        """Forget the group for good, also what came for it and was never asked for."""
        if self._backend is not None:
            self._backend.retire()
        else:
            self._groups.retire(self.context)

    # ── Reports ──────────────────────────────────────────────────────────────────────────────────────

    def mismatch(self, seq: int, peer: int, theirs: bytes) -> None:
        """Report that a member does something else under an internal number: the user's calls disagree, at
        the latest where one of the two took that number and the other did not."""
        user = self._users.get(seq, next(reversed(self._users.values()), 0))
        self._disagreed(min(user, user_of(theirs)), self.members[peer], theirs)

    def peer_mismatch(self, said: dict[int, str]) -> None:
        """Report that the two sides of a message disagree."""
        self._reports.peer_mismatch({self.members[peer]: text for peer, text in said.items()})

    def broken(self, error: GroupBroken) -> None:
        """Report that the level, and so the group, can do no more work."""
        self._reports.broken(error)
