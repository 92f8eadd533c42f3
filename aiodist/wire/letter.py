"""The letter with which a process hands its memory to a neighbour on the same host. Pure.

One datagram, with the descriptors beside it:

    magic | version | sender's rank | sender's card nonce | bytes of its home | the home's nonce | MAC

The MAC is HMAC-SHA256(secret, label | job | receiver's rank and card nonce | all before it). Card nonces are
fresh in every process, so a letter is worth nothing to another process, in the other direction or in another
job; the home's nonce ties the memory to the letter. With an empty secret the MAC proves nothing about who
wrote it. A letter with 0 bytes says that its sender has no home to share.

It stays on one host: numbers are little-endian for the sake of order only.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple

from aiodist.errors import AuthenticationError, WireError
from aiodist.wire.handshake import NONCE_BYTES, PROTOCOL_VERSION

_MAGIC = b"AIODIST mail"
_LABEL = b"aiodist letter"
_BODY = struct.Struct(f"<12sHi{NONCE_BYTES}sQ32s")
_TO = struct.Struct(f"<i{NONCE_BYTES}sH")
_MAC_BYTES = 32

LETTER_BYTES = _BODY.size + _MAC_BYTES


class Letter(NamedTuple):
    """What a letter says.

    Args:
        sender: global rank.
        card_nonce: the sender's, as its card has it.
        nbytes: of its home; 0: it has none.
        home_nonce: what stands at the start of that.
    """

    sender: int
    card_nonce: bytes
    nbytes: int
    home_nonce: bytes


def seal(letter: Letter, secret: bytes, job: str, receiver: int, receiver_nonce: bytes) -> bytes:
    """The bytes of a letter to `receiver`, whose card bears `receiver_nonce`."""
    body = _BODY.pack(_MAGIC, PROTOCOL_VERSION, *letter)
    return body + _mac(body, secret, job, receiver, receiver_nonce)


def unseal(data: bytes, secret: bytes, job: str, receiver: int, receiver_nonce: bytes) -> Letter:
    """Read a letter to this process.

    Raises:
        WireError: it is no letter.
        AuthenticationError: it was not written to this process by one that knows the secret.
    """
    if len(data) != LETTER_BYTES or not data.startswith(_MAGIC):
        raise WireError("a datagram that is no letter")
    body, mac = data[: _BODY.size], data[_BODY.size :]
    if not hmac.compare_digest(mac, _mac(body, secret, job, receiver, receiver_nonce)):
        raise AuthenticationError("a letter whose writer is not of this job, or that was meant for another")
    _magic, version, *fields = _BODY.unpack(body)
    if version != PROTOCOL_VERSION:
        raise AuthenticationError(f"a letter of protocol {version}, this process speaks {PROTOCOL_VERSION}")
    return Letter(*fields)


def _mac(body: bytes, secret: bytes, job: str, receiver: int, receiver_nonce: bytes) -> bytes:
    name = job.encode()
    to = _TO.pack(receiver, receiver_nonce, len(name))
    return hmac.digest(secret, _LABEL + to + name + body, "sha256")
