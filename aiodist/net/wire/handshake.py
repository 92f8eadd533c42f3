"""The handshake that opens every connection: who is there, for what, and do both know the secret.

Four messages, two round trips before the client may send:

    client → server   HELLO      version, byte order, nonce, purpose, rank, job, card, whom it looks for
    server → client   CHALLENGE  version, nonce
    client → server   PROOF      HMAC-SHA256(secret, "client" + transcript)
    server → client   WELCOME    HMAC-SHA256(secret, "server" + transcript), the server's rank and card

The client proves first: one that does not know the secret gets nothing that was made with it, so nothing to
try guesses on, and is not told the job's name. (The process that a client dials gets the client's proof. It,
and a recorder of a genuine handshake, can try guesses on it: no guessing finds 32 random bytes.)

The transcript is all that was said so far, so that each proof binds both nonces, both roles, what each has
said of itself, the job and whom the client looks for: a proof that is relayed to another process is worth
nothing there. With an empty secret the proofs still bind the job, but prove nothing about who is there.
Inside TLS both certificates stand in front of the transcript (`bind`): a process in between with another
certificate has another transcript.

Both ends then have a key for each direction (`keys`), made of the secret and the whole transcript. With them
`wire.seal` authenticates what follows on connections that have no TLS.

Either side may answer with REFUSED instead: one line that says why, worded for its reader, so that
both ends of a failed connection report the same cause. It is authenticated by nothing.

Rules of this module:
- An unauthenticated peer cannot make this process allocate more: a message is at most `MAX_MESSAGE` bytes, a
  handshake of one side at most 4 KiB, and the first byte that cannot belong to it ends it.
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

from aiodist.base.errors import AiodistError, AuthenticationError, UsageError, WireError
from aiodist.base.sanitize import one_line, says

PROTOCOL_VERSION = 2
NONCE_BYTES = 16
MAX_JOB = 255
MAX_CARD = 1024
MAX_MESSAGE = 2048

TORCH_OPENS = struct.pack("=BI", 0x00, 0x3C85F7CE)
"""The first bytes that a client of torch.distributed's store sends, in native order."""

TORCH_TOO = (
    "If torch.distributed meets there, too: initialise it before aiodist, or set AIODIST_SHARE_PORT=1 on "
    "all ranks"
)
"""What to do where torch and aiodist both want MASTER_PORT."""

PREFIX = struct.Struct("<7sBHH")
"""The beginning of each message: magic, kind, version, bytes that follow."""

_MAGIC = b"AIODIST"
_ORDER_MARKER = struct.pack("=I", 0x01020304)  # native order, on purpose
_ORDER_CHAR = sys.byteorder[:1].encode()
_HELLO = struct.Struct("<4sc16sBiBHB")  # marker, order, nonce, purpose, rank, len(job), len(card), len(to)
_PROOF_BYTES = 32
_WELCOME = struct.Struct("<32siH")  # proof, rank, len(card)
_SAME_VERSION = "Install the same aiodist on every host"
SAME_SECRET = (
    "Set AIODIST_SECRET to the same on every host, or copy ~/.aiodist/secret from one of them to the others: "
    "hosts that share no home each made their own"
)
"""What to do where two processes of a job have different secrets."""

_SAME_TLS = "Set AIODIST_TLS_CERT, AIODIST_TLS_KEY and AIODIST_TLS_CA in every process of the job, or in none"
_SAME_ORDER = "All hosts of a job need the same byte order"
_OWN_PORTS = "Two jobs share an address; give each its own port"
_CHECK_ADDRESS = "Check host and port"
_ADVICE = frozenset((_SAME_VERSION, SAME_SECRET, _SAME_TLS, _SAME_ORDER, _OWN_PORTS, _CHECK_ADDRESS))
_TLS_FIRST_BYTE = b"\x16"


class Purpose(enum.IntEnum):
    """The purpose of a connection."""

    store = 1
    data = 2
    control = 3
    service = 4


# What a listener accepts: the store's port serves the store; a rank's port serves the links of ranks.
_LINKS = (Purpose.data, Purpose.control, Purpose.service)
_ACCEPTS = {Purpose.store: (Purpose.store,), **dict.fromkeys(_LINKS, _LINKS)}


class MessageKind(enum.IntEnum):
    """The messages of a handshake."""

    hello = 1
    challenge = 2
    proof = 3
    refused = 4
    welcome = 5


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
        is_server: which side this is.
        done: the peer is proven; nothing more will arrive for the handshake.
        peer: who the other side says it is; trust it only once `done`.
        leftover: bytes that arrived behind the handshake; they belong to the next protocol.
        keys: for what this side sends and what it receives, 32 bytes each, once `done`; b"" each where the
            secret is empty, and so nothing can be authenticated.
    """

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        nonce: bytes,
        *,
        is_server: bool,
        to: bytes = b"",
        choose: Choose | None = None,
    ) -> None:
        if len(nonce) != NONCE_BYTES:
            raise UsageError(f"a handshake nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
        self.done = False
        self.peer: Identity | None = None
        self.leftover = b""
        self.keys = (b"", b"")
        self._identity = identity
        self._secret = secret
        self._nonce = nonce
        self.is_server = is_server
        self._choose = choose
        self._to = b""  # whom the client looks for
        self._failed = False
        self._expected = MessageKind.hello if is_server else MessageKind.challenge
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._transcript = b""
        self._binding = b""
        if not is_server:
            self._transcript = pack_message(MessageKind.hello, _pack_hello(identity, nonce, to))
            self._outbox += self._transcript

    @classmethod
    def client(cls, identity: Identity, secret: bytes, nonce: bytes, to: bytes = b"") -> Handshake:
        """The side that dialled.

        Args:
            nonce: 16 fresh random bytes.
            to: the card of the process that is looked for, or how it begins, at most 255 bytes; b"": any that
                has the secret.
        """
        return cls(identity, secret, nonce, is_server=False, to=to)

    @classmethod
    def server(
        cls, identity: Identity, secret: bytes, nonce: bytes, choose: Choose | None = None
    ) -> Handshake:
        """The side that listened. A rank's listener (data or control) accepts both kinds of links.

        Args:
            choose: for a server of many jobs: called with the job that the client names, it gives the
                identity and the secret to go on with. For an unknown job that is a random secret, so that the
                client learns no more than with a wrong one.
        """
        return cls(identity, secret, nonce, is_server=True, choose=choose)

    def bind(self, certificates: bytes) -> None:
        """Tie the proofs to the TLS session that carries them; call it before anything is sent or received.

        Args:
            certificates: digests of the server's and the client's, in this order.
        """
        self._binding = certificates

    def data_to_send(self) -> bytes:
        """The bytes to be written now; each is returned once."""
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
                f"this process uses TLS, the {'server' if self.is_server else 'client'} does not",
                _SAME_TLS,
            )
        if not _MAGIC.startswith(start):
            if inbox.startswith(TORCH_OPENS):
                raise WireError(
                    f"the {self._other()} is torch.distributed, which looks for a store of its own here",
                    hint=TORCH_TOO,
                )
            raise WireError(
                f"the {self._other()} does not speak aiodist: its first bytes are {bytes(inbox[:16])!r}",
                hint="Something else is at that address; check host and port",
            )
        if len(inbox) < PREFIX.size:
            return None
        _magic, kind, version, size = PREFIX.unpack_from(inbox)
        if size > MAX_MESSAGE:
            raise WireError(f"a handshake message of {size} bytes; at most {MAX_MESSAGE} are allowed")
        end = PREFIX.size + size
        if len(inbox) < end:
            return None
        raw = bytes(inbox[:end])
        del inbox[:end]
        return kind, version, raw[PREFIX.size :], raw

    def _handle(self, kind: int, version: int, body: bytes, raw: bytes) -> bool:
        """Handle one message; returns whether the handshake is done with it."""
        if kind == MessageKind.refused:
            raise _refusal(body)
        if kind != self._expected or (version != PROTOCOL_VERSION and kind != MessageKind.hello):
            raise WireError(f"handshake message {kind} from the {self._other()} out of turn")
        match self._expected:
            case MessageKind.hello:
                self._check_hello(version, body)
                self._transcript += raw
                self._answer(MessageKind.challenge, self._nonce, MessageKind.proof)
            case MessageKind.challenge:
                self._check_challenge(body)
                self._transcript += raw
                self._answer(MessageKind.proof, self._digest(b"client"), MessageKind.welcome)
            case MessageKind.proof:
                self._check_proof(body)
                self._transcript += raw
                me = _pack_self(self._identity)
                self._answer(MessageKind.welcome, self._digest(b"server", me) + me, MessageKind.refused)
                self._finish()
            case MessageKind.welcome:
                self._check_welcome(body)
                self._transcript += raw
                self._finish()
        return self.done

    def _answer(self, kind: MessageKind, body: bytes, expected: MessageKind) -> None:
        """Send a message, and set which one the other side has to send next."""
        answer = pack_message(kind, body)
        self._outbox += answer
        self._transcript += answer
        self._expected = expected

    def _finish(self) -> None:
        self.done = True
        if self._secret:
            root = self._digest(b"keys")
            mine, theirs = (b"server", b"client") if self.is_server else (b"client", b"server")
            self.keys = (hmac.digest(root, mine, "sha256"), hmac.digest(root, theirs, "sha256"))

    def _check_hello(self, version: int, body: bytes) -> None:
        mine = self._identity
        rank = _HELLO.unpack_from(body)[4] if len(body) >= _HELLO.size else -1
        them, me = self._name(rank, not self.is_server), self._name(mine.rank, self.is_server)
        if version != PROTOCOL_VERSION:
            raise self._refuse(
                f"{them} speaks protocol {version}, this process {PROTOCOL_VERSION}",
                f"{me} speaks protocol {PROTOCOL_VERSION}, this process {version}",
                _SAME_VERSION,
            )
        peer, marker, order, nonce, self._to = _unpack_hello(body)
        if marker != _ORDER_MARKER or order != _ORDER_CHAR:
            raise self._refuse(
                f"{them} has the other byte order than this process ({sys.byteorder}-endian)",
                f"{me} has the other byte order than this process",
                _SAME_ORDER,
            )
        if hmac.compare_digest(nonce, self._nonce):
            raise WireError(f"the {self._other()} sends this process its own messages back")
        if self._choose is not None:
            self._identity, self._secret = self._choose(peer.job)
            mine = self._identity
        if peer.purpose not in _ACCEPTS[mine.purpose]:
            raise self._refuse(
                f"{them} wants a {peer.purpose.name} connection, this is for {mine.purpose.name}",
                f"this process wants a {peer.purpose.name} connection, {me} is for {mine.purpose.name}",
                _CHECK_ADDRESS,
            )
        self.peer = peer

    def _check_challenge(self, body: bytes) -> None:
        if len(body) != NONCE_BYTES:
            raise WireError(f"a handshake challenge of {len(body)} bytes")
        if hmac.compare_digest(body, self._nonce):
            raise WireError("the server sends this process its own messages back")

    # Proofs.

    def _digest(self, role: bytes, behind: bytes = b"") -> bytes:
        return hmac.digest(self._secret, role + self._binding + self._transcript + behind, "sha256")

    def _check_proof(self, body: bytes) -> None:
        assert self.peer is not None
        if not hmac.compare_digest(body, self._digest(b"client")):
            raise self._other_secret(self.peer.rank)
        mine, job = self._identity.job, self.peer.job
        if job != mine:  # looked at only now: names are told to peers that know the secret
            them, me = self._name(self.peer.rank, False), self._name(self._identity.rank, True)
            theirs = one_line(job)
            raise self._refuse(
                f"{them} belongs to job '{theirs}', this process to '{mine}'",
                f"{me} belongs to job '{mine}', this process to '{theirs}'",
                _OWN_PORTS,
            )

        if not self._identity.card.startswith(self._to):
            raise self._refuse(
                f"{self._name(self.peer.rank, False)} looks for another process at this address",
                "another process has taken that address",
                _CHECK_ADDRESS,
            )

    def _check_welcome(self, body: bytes) -> None:
        try:
            proof, rank, size = _WELCOME.unpack_from(body)
        except struct.error as error:
            raise WireError(f"a handshake welcome that cannot be read ({error})") from None
        card = body[_WELCOME.size :]
        if len(card) != size or size > MAX_CARD:
            raise WireError("a handshake welcome whose lengths contradict each other")
        if not hmac.compare_digest(proof, self._digest(b"server", body[_PROOF_BYTES:])):
            raise self._other_secret(rank)
        self.peer = Identity(self._identity.job, self._identity.purpose, rank, card)

    def _other_secret(self, rank: int) -> AuthenticationError:
        them, me = self._name(rank, not self.is_server), self._name(self._identity.rank, self.is_server)
        return self._refuse(
            f"{them} has another secret than this process",
            f"{me} has another secret than this process",
            SAME_SECRET,
        )

    # Wording.

    def _other(self) -> str:
        return "client" if self.is_server else "server"

    def _name(self, rank: int, listens: bool) -> str:
        if rank >= 0:
            return f"rank {rank}"
        if self._identity.purpose is Purpose.store:
            return "the store" if listens else "a client of the store"
        return "the peer"

    def _refuse(self, for_me: str, for_them: str, hint: str) -> AuthenticationError:
        self._outbox += refuse(for_them, hint)
        return AuthenticationError(for_me, hint=hint)


def pack_message(kind: MessageKind, body: bytes) -> bytes:
    """The bytes of a message."""
    return PREFIX.pack(_MAGIC, kind, PROTOCOL_VERSION, len(body)) + body


def _pack_hello(identity: Identity, nonce: bytes, to: bytes = b"") -> bytes:
    job, card = identity.job.encode(), identity.card
    fixed = _HELLO.pack(
        _ORDER_MARKER,
        _ORDER_CHAR,
        nonce,
        identity.purpose,
        identity.rank,
        len(job),
        len(card),
        len(to),
    )
    return fixed + job + card + to


def _pack_self(identity: Identity) -> bytes:
    """The part of a welcome behind its proof."""
    return _WELCOME.pack(b"", identity.rank, len(identity.card))[_PROOF_BYTES:] + identity.card


def _unpack_hello(body: bytes) -> tuple[Identity, bytes, bytes, bytes, bytes]:
    """The parts of a hello: identity, order marker, order character, nonce, whom it looks for."""
    try:
        marker, order, nonce, purpose, rank, job_size, card_size, to_size = _HELLO.unpack_from(body)
        at = _HELLO.size + job_size
        end = at + card_size
        if len(body) != end + to_size:
            raise WireError("a handshake hello whose lengths contradict each other")
        identity = Identity(body[_HELLO.size : at].decode(), Purpose(purpose), rank, body[at:end])
    except (struct.error, ValueError) as error:  # UsageError, of Identity, is a ValueError
        raise WireError(f"a handshake hello that cannot be read ({error})") from None
    return identity, marker, order, nonce, body[end:]


def refuse(why: str, hint: str = "") -> bytes:
    """The answer of a server to a client that it does not even listen to."""
    return pack_message(MessageKind.refused, f"{why}\n{hint}".encode()[:MAX_MESSAGE])


def refuse_plain() -> bytes:
    """The answer of a server that uses TLS to a client that does not, so that it knows why."""
    return refuse("this process does not use TLS, the server does", _SAME_TLS)


def refused_plain(start: bytes, *, is_server: bool) -> AuthenticationError | None:
    """The error for a process that expects TLS, and gets these first bytes; None where they may be TLS."""
    if start.startswith(_MAGIC[:1]):
        other = "client" if is_server else "server"
        return AuthenticationError(f"the {other} does not use TLS, this process does", hint=_SAME_TLS)
    if start[:1] not in (_TLS_FIRST_BYTE, b"\x15"):
        return AuthenticationError(f"a peer that speaks neither TLS nor aiodist: it begins {start[:16]!r}")
    return None


def _refusal(body: bytes) -> AuthenticationError:
    """The error from the reason of a peer that has proved nothing: shown as its words. Its advice is ours
    only where we would have said the same."""
    message, _, advice = body.partition(b"\n")
    hint = advice.decode("utf-8", "replace")
    return AuthenticationError(says("the peer", message), hint=hint if hint in _ADVICE else "")
