"""The nodes of an attempt, and their places. Pure.

An *attempt* is one start of all workers. Its roster lists the nodes, in order of node rank; a node that
comes later, and whose workers join the running group, is appended, so nobody's ranks ever change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from aiodist.net.wire.typed import JsonMessage


@dataclass(frozen=True)
class Member:
    """One node.

    Args:
        id: counted by arrival, 0 the head; never given twice in a job.
        host: its short name.
        nproc: its workers.
        wanted: the --node-rank that it asked for, None: any.
        first_rank: global rank of its first worker; known in a roster.
    """

    id: int
    host: str
    nproc: int
    wanted: int | None = None
    first_rank: int = 0


@dataclass(frozen=True)
class Roster(JsonMessage):
    """One attempt.

    Args:
        members: by node rank.
        attempt: counted from 0.
        restarts: how many restarts the job had used before this attempt.
        initial: how many of the members started it; the others came later.
        store_port: of the workers' store, which is new for each attempt, on the head's host.
        master_port: MASTER_PORT of the workers.
        launch: a random name of the job's launch, the same for all attempts.
    """

    WHAT = "a job's roster"

    members: tuple[Member, ...]
    attempt: int = 0
    restarts: int = 0
    initial: int = 0
    store_port: int = 0
    master_port: int = 0
    launch: str = ""

    @classmethod
    def of(cls, members: Iterable[Member], **more: Any) -> Roster:
        """Give each node that wants a node rank that one, the others the free ones by arrival."""
        asked = list(members)
        count = len(asked)
        places: dict[int, Member] = {}
        for member in asked:
            if member.wanted is not None and member.wanted < count and member.wanted not in places:
                places[member.wanted] = member
        free = iter(sorted(set(range(count)) - places.keys()))
        for member in sorted(asked, key=lambda m: m.id):
            if member not in places.values():
                places[next(free)] = member
        listed, rank = [], 0
        for node in range(count):
            listed.append(replace(places[node], first_rank=rank))
            rank += places[node].nproc
        return cls(tuple(listed), initial=count, **more)

    @property
    def world_size(self) -> int:
        """Workers of all nodes, also of those that came later."""
        return sum(member.nproc for member in self.members)

    def node_rank(self, id: int) -> int | None:
        """The node rank of this node; None: it is not on the roster."""
        return next((rank for rank, member in enumerate(self.members) if member.id == id), None)

    def grown(self, member: Member) -> Roster:
        """This roster with a node that came later; its workers get the next ranks."""
        return replace(self, members=(*self.members, replace(member, first_rank=self.world_size)))
