"""Where the processes of a job meet: stores, the server behind them, and the ways that lead there.

    store                       the interface: every public method, the same for all kinds of stores
    methods, shapes, rules      the table of the store's methods, their arguments, what is refused
    machine/                    the store as a pure state machine
    server, client, connection  the machine behind sockets, and `TcpStore`
    durable/                    the log and snapshots of a server that survives its host
    file_store, hash_store      file:// (a file leads to a server); a store in one event loop
    prefix_store, lease, watch  a part of a store; leases; watches
    meeting_point               where a job meets and which process hosts the store: one pure table
    handlers, hosting           one function for each way; the store hosted by rank 0
    announcement, meeting_place which job a store belongs to, so that no process enters another one
    launchers/, etcd/           formats of others: torchrun, mpirun, srun, horovodrun, etcd

A method is a row in `methods`, its public call in `store`, its function in a part of `machine/`, and its name
in `etcd/store`. Wire, checks, prefixes, client and the other stores follow from the row.

Only `launchers/` and `etcd/` know formats of others. Contract: docs/store.md.
"""

from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.file_store import FileStore
from aiodist.rendezvous.handlers import meet, register_rendezvous_handler
from aiodist.rendezvous.hash_store import HashStore
from aiodist.rendezvous.hosting import announced_address
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.lease import Lease
from aiodist.rendezvous.prefix_store import PrefixStore
from aiodist.rendezvous.rank_claim import claim_rank, release_rank, this_process
from aiodist.rendezvous.server import StoreServer
from aiodist.rendezvous.store import Store
from aiodist.rendezvous.watch import Watch, WatchEvent

__all__ = [
    "FileStore",
    "HashStore",
    "Invitation",
    "Lease",
    "Meeting",
    "PrefixStore",
    "Store",
    "StoreServer",
    "TcpStore",
    "Watch",
    "WatchEvent",
    "announced_address",
    "claim_rank",
    "meet",
    "register_rendezvous_handler",
    "release_rank",
    "this_process",
]
