"""The handshake that opens every connection: who is there, for what, and do both know the secret.

Three messages, one round trip before the client may send:

    client → server   HELLO   version, byte order, nonce, purpose, rank, job, card
    server → client   WELCOME the same of the server, then HMAC-SHA256(secret, "server" + transcript)
    client → server   PROOF   HMAC-SHA256(secret, "client" + transcript)

The transcript is HELLO and WELCOME (without its proof), so that each proof binds both nonces, both
identities and the job; the role in front makes a reflected proof worthless. With an empty secret the
proofs still bind the job, but prove nothing about who is there. Inside TLS both certificates stand in front
of the transcript (`bind`): whoever sits in between with another certificate has another transcript.

Either side may answer with REFUSED instead: one line that says why, worded for its reader, so that
both ends of a failed connection report the same cause.

Rules of this module:
- Nothing is allocated on a stranger's word: a message is at most `MAX_MESSAGE` bytes, a handshake of
  one side at most 4 KiB, and the first byte that cannot belong to it ends it.
- All fields are little-endian and fixed; the native byte order is carried as a marker, not guessed.
- The prefix, REFUSED and the fields of HELLO up to `rank` stay as they are in every protocol version.
"""

from __future__ import annotations

import enum
import hmac
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from aiodist.errors import AiodistError, AuthenticationError, UsageError, WireError

PROTOCOL_VERSION = 1
NONCE_BYTES = 16
MAX_JOB = 255
MAX_CARD = 1024
MAX_MESSAGE = 2048

_MAGIC = b"AIODIST"
_PREFIX = struct.Struct("<7sBHH")  # magic, kind, version, bytes that follow
_ORDER_MARKER = struct.pack("=I", 0x01020304)  # native order, on purpose
_ORDER_CHAR = sys.byteorder[:1].encode()
_HELLO = struct.Struct("<4sc16sBiBH")  # marker, order, nonce, purpose, rank, len(job), len(card)
_SAME_VERSION = "Install the same aiodist on every host"
_SAME_SECRET = (
    "Set AIODIST_SECRET to the same on every host, or copy ~/.aiodist/secret from one of them to the others: "
    "hosts that share no home each made their own"
)
_SAME_TLS = "Set AIODIST_TLS_CERT, AIODIST_TLS_KEY and AIODIST_TLS_CA in every process of the job, or in none"
_TLS_FIRST_BYTE = b"\x16"


class Purpose(enum.IntEnum):
    """What a connection is for."""

    store = 1
    data = 2
    control = 3


# What a listener accepts: the store's port serves the store; a rank's port serves both kinds of links.
_ACCEPTS = {
    Purpose.store: (Purpose.store,),
    Purpose.data: (Purpose.data, Purpose.control),
    Purpose.control: (Purpose.data, Purpose.control),
}


class _Kind(enum.IntEnum):
    hello = 1
    welcome = 2
    proof = 3
    refused = 4


@dataclass(frozen=True)
class Identity:
    """One end of a connection.

    Args:
        job: the job's id; both ends must name the same one.
        purpose: what the connection is for.
        rank: global rank, -1 where there is none (yet).
        card: at most 1 KiB that the peer gets, authenticated with the rest; opaque here.
    """

    job: str
    purpose: Purpose
    rank: int = -1
    card: bytes = b""

    def __post_init__(self) -> None:
        if len(self.job.encode()) > MAX_JOB:
            raise UsageError(f"a job id has at most {MAX_JOB} bytes, this one {len(self.job.encode())}")
        if len(self.card) > MAX_CARD:
            raise UsageError(f"a handshake card has at most {MAX_CARD} bytes, this one {len(self.card)}")


Choose = Callable[[str], tuple[Identity, bytes]]


class Handshake:
    """One side of the handshake, without I/O.

    Write what `data_to_send` returns, feed what arrives to `receive`, until `done`. When `receive`
    raises, write `data_to_send` once more (it may hold the refusal for the peer) and close.

    Attributes:
        done: the peer is proven; nothing more will arrive for the handshake.
        peer: who the other side says it is; trust it only once `done`.
        leftover: bytes that arrived behind the handshake; they belong to the next protocol.
    """

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        nonce: bytes,
        *,
        is_server: bool,
        choose: Choose | None = None,
    ) -> None:
        if len(nonce) != NONCE_BYTES:
            raise UsageError(f"a handshake nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
        self.done = False
        self.peer: Identity | None = None
        self.leftover = b""
        self._identity = identity
        self._secret = secret
        self._nonce = nonce
        self._is_server = is_server
        self._choose = choose
        self._failed = False
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._transcript = b""
        self._binding = b""
        if not is_server:
            self._transcript = _message(_Kind.hello, _pack_hello(identity, nonce))
            self._outbox += self._transcript

    @classmethod
    def client(cls, identity: Identity, secret: bytes, nonce: bytes) -> Handshake:
        """The side that dialled. `nonce`: 16 fresh random bytes."""
        return cls(identity, secret, nonce, is_server=False)

    @classmethod
    def server(
        cls, identity: Identity, secret: bytes, nonce: bytes, choose: Choose | None = None
    ) -> Handshake:
        """The side that listened. A rank's listener (data or control) accepts both kinds of links.

        Args:
            choose: for who serves many jobs: called with the job that the client names, it gives the identity
                and the secret to go on with. For an unknown job that is a random secret, so that the client
                learns no more than with a wrong one.
        """
        return cls(identity, secret, nonce, is_server=True, choose=choose)

    def bind(self, certificates: bytes) -> None:
        """Tie the proofs to the TLS session that carries them; call it before anything is sent or received.

        Args:
            certificates: digests of the server's and the client's, in this order.
        """
        self._binding = certificates

    def data_to_send(self) -> bytes:
        """What is to be written now; each byte is returned once."""
        data = bytes(self._outbox)
        self._outbox.clear()
        return data

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Feed bytes as they arrive, in pieces of any size.

        Raises:
            AuthenticationError: the peer is of another job, version, byte order or secret, or refused us.
            WireError: the bytes are not this protocol.
        """
        if self.done:
            self.leftover += bytes(data)
            return
        if self._failed:
            return
        # One message, its successor and whatever was pipelined: the rest is never looked at before `done`.
        self._inbox += data
        try:
            while (message := self._next_message()) is not None:
                kind, version, body, raw = message
                if self._handle(kind, version, body, raw):
                    self.leftover = bytes(self._inbox)
                    self._inbox.clear()
                    return
        except AiodistError:
            self._failed = True
            self._inbox.clear()
            raise

    # Parsing.

    def _next_message(self) -> tuple[int, int, bytes, bytes] | None:
        inbox = self._inbox
        start = bytes(inbox[: len(_MAGIC)])
        if start.startswith(_TLS_FIRST_BYTE):
            raise self._refuse(
                f"the {self._other()} uses TLS, this process does not",
                f"this process uses TLS, the {'server' if self._is_server else 'client'} does not",
                _SAME_TLS,
            )
        if not _MAGIC.startswith(start):
            raise WireError(
                f"the {self._other()} does not speak aiodist: its first bytes are {bytes(inbox[:16])!r}",
                hint="Something else is at that address; check host and port",
            )
        if len(inbox) < _PREFIX.size:
            return None
        _magic, kind, version, size = _PREFIX.unpack_from(inbox)
        if size > MAX_MESSAGE:
            raise WireError(f"a handshake message of {size} bytes; at most {MAX_MESSAGE} are allowed")
        end = _PREFIX.size + size
        if len(inbox) < end:
            return None
        raw = bytes(inbox[:end])
        del inbox[:end]
        return kind, version, raw[_PREFIX.size :], raw

    def _handle(self, kind: int, version: int, body: bytes, raw: bytes) -> bool:
        """One message; returns whether the handshake is done with it."""
        if kind == _Kind.refused:
            raise _refusal(body, self._other())
        if self._is_server and kind == _Kind.hello and self.peer is None:
            self._check_hello(version, body)
            answer = _message(_Kind.welcome, _pack_hello(self._echoed(), self._nonce))
            self._transcript = raw + answer
            self._outbox += answer + self._proof(b"server")
        elif not self._is_server and kind == _Kind.welcome and self.peer is None:
            self._check_hello(version, body)
            self._transcript += raw
        elif kind == _Kind.proof and version == PROTOCOL_VERSION and self.peer is not None:
            self._check_proof(body)
        else:
            raise WireError(f"handshake message {kind} from the {self._other()} out of turn")
        return self.done

    def _check_hello(self, version: int, body: bytes) -> None:
        mine = self._identity
        rank = _HELLO.unpack_from(body)[4] if len(body) >= _HELLO.size else -1
        them, me = self._name(rank, not self._is_server), self._name(mine.rank, self._is_server)
        if version != PROTOCOL_VERSION:
            raise self._refuse(
                f"{them} speaks protocol {version}, this process {PROTOCOL_VERSION}",
                f"{me} speaks protocol {PROTOCOL_VERSION}, this process {version}",
                _SAME_VERSION,
            )
        peer, marker, order, nonce = _unpack_hello(body)
        theirs = printable(peer.job)
        if marker != _ORDER_MARKER or order != _ORDER_CHAR:
            raise self._refuse(
                f"{them} has the other byte order than this process ({sys.byteorder}-endian)",
                f"{me} has the other byte order than this process",
                "All hosts of a job need the same byte order",
            )
        if hmac.compare_digest(nonce, self._nonce):
            raise WireError(f"the {self._other()} sends this process its own words back")
        if self._choose is not None:
            self._identity, self._secret = self._choose(peer.job)
            mine = self._identity
        if peer.job != mine.job:
            raise self._refuse(
                f"{them} belongs to job '{theirs}', this process to '{mine.job}'",
                f"{me} belongs to job '{mine.job}', this process to '{theirs}'",
                "Two jobs share an address; give each its own port",
            )
        if peer.purpose not in (_ACCEPTS[mine.purpose] if self._is_server else (mine.purpose,)):
            raise self._refuse(
                f"{them} wants a {peer.purpose.name} connection, this is for {mine.purpose.name}",
                f"this process wants a {peer.purpose.name} connection, {me} is for {mine.purpose.name}",
                "Check host and port",
            )
        self.peer = peer

    # Proofs.

    def _proof(self, role: bytes) -> bytes:
        return _message(_Kind.proof, self._digest(role))

    def _digest(self, role: bytes) -> bytes:
        return hmac.digest(self._secret, role + self._binding + self._transcript, "sha256")

    def _check_proof(self, body: bytes) -> None:
        role = b"client" if self._is_server else b"server"
        expected = self._digest(role)
        assert self.peer is not None
        if not hmac.compare_digest(body, expected):
            them = self._name(self.peer.rank, not self._is_server)
            me = self._name(self._identity.rank, self._is_server)
            raise self._refuse(
                f"{them} has another secret than this process",
                f"{me} has another secret than this process",
                _SAME_SECRET,
            )
        if not self._is_server:
            self._outbox += self._proof(b"client")
        self.done = True

    # Wording.

    def _echoed(self) -> Identity:
        """The server's identity with the purpose that the client asked for."""
        assert self.peer is not None
        mine = self._identity
        return Identity(mine.job, self.peer.purpose, mine.rank, mine.card)

    def _other(self) -> str:
        return "client" if self._is_server else "server"

    def _name(self, rank: int, listens: bool) -> str:
        if rank >= 0:
            return f"rank {rank}"
        if self._identity.purpose is Purpose.store:
            return "the store" if listens else "a client of the store"
        return "the peer"

    def _refuse(self, for_me: str, for_them: str, hint: str) -> AuthenticationError:
        self._outbox += _message(_Kind.refused, f"{for_them}\n{hint}".encode()[:MAX_MESSAGE])
        return AuthenticationError(for_me, hint=hint)


def _message(kind: _Kind, body: bytes) -> bytes:
    return _PREFIX.pack(_MAGIC, kind, PROTOCOL_VERSION, len(body)) + body


def _pack_hello(identity: Identity, nonce: bytes) -> bytes:
    job = identity.job.encode()
    fixed = _HELLO.pack(
        _ORDER_MARKER, _ORDER_CHAR, nonce, identity.purpose, identity.rank, len(job), len(identity.card)
    )
    return fixed + job + identity.card


def _unpack_hello(body: bytes) -> tuple[Identity, bytes, bytes, bytes]:
    """→ identity, order marker, order character, nonce."""
    try:
        marker, order, nonce, purpose, rank, job_size, card_size = _HELLO.unpack_from(body)
        at = _HELLO.size + job_size
        if len(body) != at + card_size:
            raise WireError("a handshake hello whose lengths contradict each other")
        identity = Identity(body[_HELLO.size : at].decode(), Purpose(purpose), rank, body[at:])
    except (struct.error, ValueError) as error:  # UsageError, of Identity, is a ValueError
        raise WireError(f"a handshake hello that cannot be read ({error})") from None
    return identity, marker, order, nonce


def refuse_plain() -> bytes:
    """What a server that uses TLS answers to a client that does not, so that it knows why."""
    return _message(_Kind.refused, f"this process does not use TLS, the server does\n{_SAME_TLS}".encode())


def refused_plain(start: bytes, *, is_server: bool) -> AuthenticationError | None:
    """The error for who expects TLS, and gets these first bytes; None where they may be TLS."""
    if start.startswith(_MAGIC[:1]):
        other = "client" if is_server else "server"
        return AuthenticationError(f"the {other} does not use TLS, this process does", hint=_SAME_TLS)
    if start[:1] not in (_TLS_FIRST_BYTE, b"\x15"):
        return AuthenticationError(f"a peer that speaks neither TLS nor aiodist: it begins {start[:16]!r}")
    return None


def printable(text: str, limit: int = 400) -> str:
    """A stranger's words as one line that a terminal or a log takes no orders from."""
    return "".join(c if c.isprintable() else " " for c in text)[:limit]


def _refusal(body: bytes, other: str) -> AuthenticationError:
    """A stranger's words: shown as one printable line each, nothing else."""
    message, _, hint = body.decode("utf-8", "replace").partition("\n")
    message, hint = printable(message), printable(hint)
    return AuthenticationError(message or f"the {other} refused this process without a reason", hint=hint)
