"""The rendezvous in etcd: by `etcd://host:port,…`, or `etcds://` with TLS."""

from __future__ import annotations

from aiodist.rendezvous.etcd.place import place as read_place
from aiodist.rendezvous.etcd.store import EtcdStore
from aiodist.rendezvous.hosting import known_place, meet_at
from aiodist.rendezvous.invitation import Invitation, Meeting


async def meet(invitation: Invitation) -> Meeting:
    """Meet at the store in etcd that the URL leads to. Errors as of `EtcdStore.connect`."""
    read_place(invitation.url, invitation.environ)  # before anything shows a URL with a password in it
    place = known_place(invitation)
    store = await EtcdStore.connect(
        invitation.url, invitation.job, invitation.timeout, environ=invitation.environ
    )
    return await meet_at(invitation, place, store, store.address)


connect = EtcdStore.connect
