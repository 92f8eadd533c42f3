"""The facts that an agent knows for the whole job, and so its place in each attempt. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aiodist.launch.nodes.roster import Roster
from aiodist.launch.nodes.store_access import StoreAccess
from aiodist.launch.place import Place
from aiodist.net.sockets import join_address


@dataclass(frozen=True)
class LocalNode:
    """One agent's facts for the whole job.

    Args:
        id: this node, by arrival; 0 is the head.
        store_host: where workers reach the stores that the head hosts.
        master_addr: MASTER_ADDR of the workers.
        access: opens the agents' stores.
        host: this node's short name.
        run: as of `Place`.
    """

    id: int
    store_host: str
    master_addr: str
    access: StoreAccess
    host: str = ""
    run: str = ""

    def place(self, roster: Roster) -> Place:
        """This node's place in an attempt; it is on the roster."""
        node_rank = roster.node_rank(self.id)
        assert node_rank is not None
        # What our workers are told stays as it is when others come, also for one that is started again.
        newcomer = node_rank >= roster.initial
        seen = roster.members if newcomer else roster.members[: roster.initial]
        mine = roster.members[node_rank]
        return Place(
            node_rank=node_rank,
            nnodes=len(seen),
            first_rank=mine.first_rank,
            nproc=mine.nproc,
            world_size=sum(member.nproc for member in seen),
            master_addr=self.master_addr,
            master_port=roster.master_port,
            store=join_address(self.store_host, roster.store_port),
            job=self.access.job,
            secret=self.access.launched(roster.launch).of_workers.secret,
            host=self.host,
            newcomer=newcomer,
            run=self.run,
        )
