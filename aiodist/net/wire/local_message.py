"""The messages with which two processes of a host prove who they are, and pass their memory. Pure.

Four on a connection: each side's hello, then each side's segment, with the descriptors beside the message.

    magic | version | sender's rank | sender's card nonce | bytes of its segment | token | flags | MAC

The token is random in a hello; then it is the segment's nonce, which ties the memory to the message. The MAC
is HMAC-SHA256(secret, label | job | receiver's rank and card nonce | all messages before, both ways | this
one). Card nonces are fresh in every process and tokens on every connection, so a message is worth nothing to
another process, on another connection, in the other direction or in another job; and a process that has
answered a hello knows the secret now. With an empty secret the MAC proves nothing about who wrote it. A
message with 0 bytes that is no hello says that its sender has no segment to share.

It stays on one host: numbers are little-endian for the sake of order only.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple

from aiodist.base.errors import AuthenticationError, WireError
from aiodist.net.wire.handshake import NONCE_BYTES, PROTOCOL_VERSION

_MAGIC = b"AIODIST mail"
_LABEL = b"aiodist message"
_BODY = struct.Struct(f"<12sHi{NONCE_BYTES}sQ32s?")
_TO = struct.Struct(f"<i{NONCE_BYTES}sHI")
_MAC_BYTES = 32

MESSAGE_BYTES = _BODY.size + _MAC_BYTES
TOKEN_BYTES = 32


class LocalMessage(NamedTuple):
    """The contents of a message.

    Args:
        sender: global rank.
        card_nonce: the sender's, as its card has it.
        nbytes: of its segment; 0: it has none, or this is a hello.
        token: what stands at the start of that; in a hello TOKEN_BYTES random bytes.
        linked: the connection is to become a control link. Said by the side that dialed, with its segment.
    """

    sender: int
    card_nonce: bytes
    nbytes: int
    token: bytes
    linked: bool = False


def seal(
    message: LocalMessage, secret: bytes, job: str, receiver: int, receiver_nonce: bytes, said: bytes = b""
) -> bytes:
    """The bytes of a message to `receiver`, whose card bears `receiver_nonce`.

    Args:
        said: the messages before it on this connection, both ways, in order.
    """
    body = _BODY.pack(_MAGIC, PROTOCOL_VERSION, *message)
    return body + _mac(body, secret, job, receiver, receiver_nonce, said)


def unseal(
    data: bytes, secret: bytes, job: str, receiver: int, receiver_nonce: bytes, said: bytes = b""
) -> LocalMessage:
    """Read a message to this process.

    Args:
        said: as for `seal`.

    Raises:
        WireError: it is no message.
        AuthenticationError: it was not written to this process by one that knows the secret.
    """
    if len(data) != MESSAGE_BYTES or not data.startswith(_MAGIC):
        raise WireError("bytes that are no message")
    body, mac = data[: _BODY.size], data[_BODY.size :]
    if not hmac.compare_digest(mac, _mac(body, secret, job, receiver, receiver_nonce, said)):
        raise AuthenticationError("a message whose writer is not of this job, or that was meant for another")
    _magic, version, *fields = _BODY.unpack(body)
    if version != PROTOCOL_VERSION:
        raise AuthenticationError(f"a message of protocol {version}, this process speaks {PROTOCOL_VERSION}")
    return LocalMessage(*fields)


def _mac(body: bytes, secret: bytes, job: str, receiver: int, receiver_nonce: bytes, said: bytes) -> bytes:
    name = job.encode()
    to = _TO.pack(receiver, receiver_nonce, len(name), len(said))
    return hmac.digest(secret, _LABEL + to + name + said + body, "sha256")
