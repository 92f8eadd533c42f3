"""The rendezvous in etcd: by `etcd://host:port,…`, or `etcds://` with TLS."""

from __future__ import annotations

from dataclasses import replace

from aiodist.rendezvous.etcd.place import place
from aiodist.rendezvous.etcd.store import EtcdStore
from aiodist.rendezvous.hosting import meet_at
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.meeting_point import MeetingPoint, known_place

connect = EtcdStore.connect


async def meet(invitation: Invitation, point: MeetingPoint) -> Meeting:
    """Meet at the store in etcd that a URL leads to. Errors as of `EtcdStore.connect`."""
    place(point.path, invitation.environ)  # before anything shows a URL with a password in it
    known_place(replace(invitation, url=point.path))
    store = await connect(point.path, invitation.job, invitation.timeout, environ=invitation.environ)
    return await meet_at(invitation, store)
