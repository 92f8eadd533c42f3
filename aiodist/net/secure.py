"""A TCP socket with TLS on it, for code that reads and writes non-blocking sockets itself.

It has the calls of such a socket that this package makes. `shake_hands` comes first, whenever there is
something to read, until it says True. Ciphertext goes through memory (`ssl.MemoryBIO`), so what
an unauthenticated peer may make this process hold is bounded here, and one call to the system moves many
records.

What a selector cannot know, this class sees to:
- *Reading.* Records come whole, so more may be decrypted than was asked for, with nothing left in the socket
  to wake a loop. `recv` therefore returns all of it, also beyond what was asked for; after `recv_into`,
  which cannot, and after shaking hands, `pending` says whether to come again.
- *Writing.* What was encrypted must leave as it is: see `records`.

An end of the TCP connection reads as the end, with or without TLS's own goodbye: the protocols inside have
theirs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import socket
import ssl
from typing import Any

from aiodist.base.environment import Tls
from aiodist.base.errors import AuthenticationError, WireError
from aiodist.net.records import Bytes, RecordSocket
from aiodist.net.wire.handshake import refuse_plain, refused_plain

HELLO_LIMIT = 32 << 10
"""Bytes of TLS handshake that an unauthenticated peer may send."""

_RECORD = 16 << 10  # plaintext of one record, at most
_CHUNK = 256 << 10  # ciphertext that is read at a time
_IDLE_CHUNK = 20 << 10  # likewise, of a connection that is not busy: one record and some
_NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_HINT = "Give every process a certificate that the CA in AIODIST_TLS_CA has signed, and all the same CA"


class SecureSocket(RecordSocket):
    """TLS over a connected, non-blocking TCP socket, which it owns.

    Args:
        sock: the connection; nothing was read from it.
        tls: this process's certificate, and whose it trusts.
        is_server: whether this process accepted the connection.

    Attributes:
        binding: digests of the server's and the client's certificates, once hands were shaken.
    """

    def __init__(self, sock: socket.socket, tls: Tls, *, is_server: bool) -> None:
        super().__init__(sock)
        self.binding = b""
        self._is_server = is_server
        self._certificate = tls.certificate
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = tls.server if is_server else tls.client
        self._tls = context.wrap_bio(self._in, self._out, server_side=is_server)
        self._hello = 0  # bytes that came for the handshake
        self._heard = False  # the peer has said something behind it
        self._chunk = _IDLE_CHUNK
        self._ended = False
        self._error: Exception | None = None

    def shake_hands(self) -> bool:
        """Go on with the handshake as far as possible; whether it is done.

        Raises:
            AuthenticationError: the peer has no certificate of ours, does not take ours, or uses no TLS;
                it was told.
            WireError: it says too much.
            ConnectionError: it went away.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send_handshake()
                if not self._read_handshake():
                    return False
                continue
            except ssl.SSLError as error:
                self._send_handshake()  # the alert
                raise self._refused(error) from None
            self._send_handshake()
            theirs = self._tls.getpeercert(binary_form=True)
            assert theirs is not None  # both contexts require one
            server, client = (self._certificate, theirs) if self._is_server else (theirs, self._certificate)
            self.binding = hashlib.sha256(server).digest() + hashlib.sha256(client).digest()
            return True

    def pending(self) -> bool:
        """Whether something was read from the socket that `recv_into` has not handed on."""
        return bool(self._tls.pending() or self._in.pending)

    # Reading.

    def recv(self, nbytes: int) -> bytes:
        """Receive what has arrived, `nbytes` and beyond; b'' at the end. `BlockingIOError` for nothing."""
        parts: list[bytes] = []
        have = 0
        while (data := self._read(max(nbytes - have, _RECORD), None, have < nbytes, have)) is not None:
            parts.append(data)
            have += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def recv_into(self, place: bytearray | memoryview) -> int:
        """Fill `place` with what has arrived; 0 at the end. `BlockingIOError` for nothing."""
        view = memoryview(place)
        have = 0
        while have < len(view):
            count = self._read(len(view) - have, view[have:], True, have)
            if count is None:
                break
            have += count
        return have

    def _read(self, nbytes: int, place: memoryview | None, wanted: bool, have: int) -> Any:
        """One record's worth: bytes, or their number where there is a place; None for nothing more now.

        Args:
            wanted: whether the socket may be asked for more.
            have: bytes that the caller has already: then it is not told of an end, or an error, yet.
        """
        while True:
            try:
                if self._error is not None:
                    raise self._error
                got = self._tls.read(nbytes) if place is None else self._tls.read(nbytes, place)
                if got:
                    self._heard = True
                    return got
                self._ended = True
            except ssl.SSLWantReadError:
                if wanted and self._fill():
                    continue
            except ssl.SSLZeroReturnError:
                self._ended = True
            except ssl.SSLError as error:
                self._error = self._refused(error) if not self._heard else _broken(error)
                # The caller, or its loop, comes again and hears of it.
                with contextlib.suppress(OSError):
                    self._sock.send(self._out.read(), _NOSIGNAL)  # the alert
                    self._sock.shutdown(socket.SHUT_RD)
            if have:
                return None
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            raise BlockingIOError

    def _fill(self) -> bool:
        """Read ciphertext; whether there was any."""
        if self._ended or self._error is not None:
            return False
        try:
            data = self._sock.recv(self._chunk)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._error = error
            return False
        if not data:
            self._ended = True
            return False
        self._chunk = _CHUNK if len(data) == self._chunk else _IDLE_CHUNK
        self._in.write(data)
        return True

    # Writing.

    def _wrap(self, piece: Bytes) -> bytes:
        self._tls.write(piece)
        return self._out.read()

    # The handshake.

    def _send_handshake(self) -> None:
        data = self._out.read()
        try:
            if data and self._sock.send(data, _NOSIGNAL) != len(data):
                raise WireError("the peer does not read its TLS handshake")  # some KiB always fit
        except BlockingIOError:
            raise WireError("the peer does not read its TLS handshake") from None

    def _read_handshake(self) -> bool:
        try:
            data = self._sock.recv(4096)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection during the TLS handshake")
        if not self._hello and (refused := refused_plain(data, is_server=self._is_server)) is not None:
            if self._is_server:
                with contextlib.suppress(OSError):
                    self._sock.send(refuse_plain(), _NOSIGNAL)
            raise refused
        self._hello += len(data)
        if self._hello > HELLO_LIMIT:
            raise WireError(f"a TLS handshake of more than {HELLO_LIMIT >> 10} KiB")
        self._in.write(data)
        return True

    def _refused(self, error: ssl.SSLError) -> AuthenticationError:
        other = "client" if self._is_server else "server"
        if isinstance(error, ssl.SSLCertVerificationError):
            return AuthenticationError(
                f"the certificate of the {other} is not accepted ({error.verify_message})", hint=_HINT
            )
        words = _words(error)
        if "peer did not return a certificate" in words:
            return AuthenticationError(f"the {other} shows no certificate", hint=_HINT)
        if "alert" in words:
            return AuthenticationError(f"the {other} does not accept this process ({words})", hint=_HINT)
        return AuthenticationError(f"no TLS connection with the {other} ({words})")


def _broken(error: ssl.SSLError) -> OSError:
    return ConnectionError(errno.EPROTO, f"TLS failed: {_words(error)}")


def _words(error: ssl.SSLError) -> str:
    return (error.reason or "unknown").replace("_", " ").lower()
