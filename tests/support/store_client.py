"""The connection of a store's client, for tests of what goes over it. No other test looks for it."""

from __future__ import annotations

import socket

from aiodist.net.records import RecordSocket
from aiodist.rendezvous import TcpStore
from aiodist.rendezvous.connection import StoreConnection


def is_connected(store: TcpStore) -> bool:
    """Whether the client has a connection now."""
    return store._connection is not None


def connection_of(store: TcpStore) -> StoreConnection:
    """The connection that the client has now."""
    assert store._connection is not None
    return store._connection


def socket_of(store: TcpStore) -> socket.socket | RecordSocket:
    """The socket of that connection, over TLS where the client came so."""
    return connection_of(store)._buffer.sock
