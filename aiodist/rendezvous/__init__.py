"""The rendezvous of processes: stores, the server behind them, and the schemes that lead there."""

from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.file_store import FileStore
from aiodist.rendezvous.handlers import meet, register_rendezvous_handler
from aiodist.rendezvous.hash_store import HashStore
from aiodist.rendezvous.hosting import told_address
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
    "claim_rank",
    "meet",
    "register_rendezvous_handler",
    "release_rank",
    "this_process",
    "told_address",
]
