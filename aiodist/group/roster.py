"""The members of a group: fixed when it is made (law 9), and the same on all ranks but for `rank`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from aiodist.base.sanitize import one_line
from aiodist.group.seats import RankSeat, Seat, place_in


@dataclass(frozen=True)
class Roster:
    """The members of one group.

    Args:
        me: this process's global rank.
        ranks: the members' global ranks, in group order.
        hosts: name of each member's host, in group order.
        name: of the group, for people: it is made one printable line, since it stands in logs and errors.
        context: 64-bit number that names the group at its epoch, equal on all members.
        epoch: counts membership changes.
        seats: where each member sits, in group order.

    Attributes:
        rank: of this process in the group.
        size: number of members.
        place: local rank and node rank of this process in the group.
    """

    me: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    name: str
    context: int
    epoch: int
    seats: tuple[Seat, ...]
    rank: int = field(init=False)
    size: int = field(init=False)
    place: RankSeat = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", one_line(self.name))
        object.__setattr__(self, "rank", self.ranks.index(self.me))
        object.__setattr__(self, "size", len(self.ranks))
        object.__setattr__(self, "place", place_in(self.seats, self.rank))

    def of(self, members: Sequence[int], name: str, context: int) -> Roster:
        """The roster of a group of some of the members, given as ranks of this group."""
        return Roster(
            self.me,
            tuple(self.ranks[member] for member in members),
            tuple(self.hosts[member] for member in members),
            name,
            context,
            self.epoch,
            tuple(self.seats[member] for member in members),
        )


def context_of(parent: int, number: int, ranks: Sequence[int], name: str = "") -> int:
    """The 64-bit number that names a group, equal on all members without asking.

    Args:
        parent: the parent group's context; 0 for a world.
        number: of the new group among its parent's children.
        ranks: global ranks of the members.
        name: of a world (job, group name, epoch), or of a color.
    """
    text = f"{parent}/{number}/{','.join(map(str, ranks))}/{name}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
