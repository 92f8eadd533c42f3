"""Access to this job's stores: by the name, the secret and the certificates that its processes share.

The agents' stores and the workers' have different secrets: what a worker knows opens no store of the agents,
where its keys could be taken for theirs.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aiodist.base.environment import Tls

if TYPE_CHECKING:
    from aiodist.rendezvous.client import TcpStore
    from aiodist.rendezvous.server import StoreServer

FOREVER = 1e8
"""Seconds for what may wait, or last, in a store for as long as the job."""


@dataclass(frozen=True)
class StoreAccess:
    """The name, secret and certificates that serve and open the stores of one job.

    Args:
        job: its name.
        secret: shared by the job, '': none.
        tls: None where the job does without.
        launch: names this launch of the job, at random. The workers of another one, which may have the job's
            name and the agents' secret too, have another secret.
    """

    job: str
    secret: str = field(repr=False)
    tls: Tls | None = None
    launch: str = ""

    def launched(self, launch: str) -> StoreAccess:
        """Access to the stores of this launch of the job."""
        return replace(self, launch=launch)

    @property
    def of_workers(self) -> StoreAccess:
        """Access to the workers' stores: their secret follows from the agents', and not the other way round.

        Without a secret there is nothing to tell them apart by.
        """
        if not self.secret:
            return self
        about = f"aiodist: the workers of launch {self.launch} of job {self.job}".encode()
        return replace(self, secret=hmac.digest(self.secret.encode(), about, "sha256").hex())

    async def serve(self, host: str, port: int = 0) -> StoreServer:
        """Host a store; port 0 picks a free one. Raises `RendezvousError` as `StoreServer.start`."""
        from aiodist.rendezvous.server import StoreServer

        return await StoreServer.start(host, port, self.job, self.secret.encode(), tls=self.tls)

    async def enter(
        self, host: str, port: int, timeout: float, *, instance: bytes = b"", told: bool = False
    ) -> TcpStore:
        """Connect to one, within so many seconds. Raises `RendezvousError` as `TcpStore.connect`.

        Args:
            instance: names the very store that is meant; b'': any of this job and secret.
            told: the operator has told all agents this address, and no other job's.
        """
        from aiodist.rendezvous.client import TcpStore
        from aiodist.rendezvous.meeting_place import NOWHERE, MeetingPlace

        return await TcpStore.connect(
            *(host, port, self.job, self.secret.encode(), timeout),
            tls=self.tls,
            instance=instance,
            place=MeetingPlace.at(host, port) if told else NOWHERE,
        )
