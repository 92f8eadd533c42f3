"""Files of a store server: a log that is synced before any answer, snapshots, and whose they are.

A server opens a `DataFolder`, and gets a `Committer` for each store in it: it knows nothing else of these.

    data_folder   the folder of a whole server
    committer     syncs many requests at once
    disk          the files of one store
    journal       what is in them, as bytes
"""

from aiodist.rendezvous.durable.committer import Committer
from aiodist.rendezvous.durable.data_folder import DataFolder
from aiodist.rendezvous.durable.disk import Disk

__all__ = ["Committer", "DataFolder", "Disk"]
