"""Connections that have not proved themselves, at a store's server or a rank's endpoint: how many there are,
and how many may be. No other test looks for them."""

from __future__ import annotations

from aiodist.net.admission import Admission
from aiodist.rendezvous import StoreServer
from aiodist.transport import SocketEndpoint

Host = StoreServer | SocketEndpoint


def _admission(host: Host) -> Admission:
    listener = host._server if isinstance(host, StoreServer) else host._listener
    assert listener is not None
    return listener._admission


def silent(host: Host) -> int:
    """How many have said nothing yet."""
    return len(_admission(host))


def shaking_hands(host: Host) -> int:
    """How many have begun their handshake."""
    return len(host._unauthenticated if isinstance(host, StoreServer) else host._incoming)


def limit_silent(host: Host, most: int) -> None:
    """Let so many be silent at a time."""
    _admission(host)._most = most


def limit_handshakes(host: Host, most: int) -> None:
    """Let so many shake hands at a time."""
    host._most_unauthenticated = most
