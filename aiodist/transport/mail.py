"""Proof by mail that two processes share a host: each sends the other its memory and its bells.

Every process has a datagram socket in the abstract namespace of Unix sockets. A letter carries the
descriptors of the sender's home; who can verify, map and find the right nonce in it sees that memory, and
has the sender's process id from the kernel. No connection is needed, so n ranks meet with n² datagrams.
A letter may bring a *line*, too, one end of a socket pair: a control link that nobody has to dial or greet.

Nothing is read before the cards are known: the kernel keeps a few letters, then makes senders wait. A letter
that is refused leaves no descriptor behind. That it came from another process of the job is the MAC's to
say; that it goes to one follows from the name, which is fresh, random, and announced over the store alone.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import secrets
import socket
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from aiodist.errors import AiodistError, BackendUnavailable, WireError
from aiodist.net.near import CREDENTIALS
from aiodist.shm.arena import NONCE_BYTES
from aiodist.shm.home import Home, Neighbour, home_bytes
from aiodist.transport.listening import unix_address
from aiodist.wire.letter import LETTER_BYTES, Letter, seal, unseal

ANSWER_DEADLINE = 5.0
"""Seconds in which a neighbour must have answered."""

_PAUSES = (0.0005, 0.001, 0.002, 0.005)  # seconds until a full mailbox is tried again; then the last
_FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
_INT = struct.calcsize("i")
_HOME_DESCRIPTORS = 3  # and a fourth for a line
_ANCILLARY = (  # what does not fit here, the kernel closes
    socket.CMSG_SPACE((_HOME_DESCRIPTORS + 1) * _INT) + socket.CMSG_SPACE(CREDENTIALS.size)
    if hasattr(socket, "CMSG_SPACE")
    else 0
)
_LETTERS_A_TURN = 16  # a flood of letters must not hold the loop


class Mailbox:
    """One process's mail. It accepts letters from `introduce` on, and answers who writes first.

    Args:
        loop: the event loop.
        rank: this process's global rank.
        job: the job's id.
        secret: the job's secret.
        nonce: this process's, as its card has it.
        home_nbytes: virtual bytes of its home; None: as many as the system's limits let it.

    Attributes:
        name: where it is, for the card.
        home: this process's own memory, once somebody was written to.
        neighbours: who was proved to be local.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rank: int,
        job: str,
        secret: bytes,
        nonce: bytes,
        home_nbytes: int | None = None,
    ) -> None:
        self.name = b"aiodist-" + secrets.token_hex(16).encode()
        self.home: Home | None = None
        self.neighbours: dict[int, Neighbour] = {}
        self._loop = loop
        self._rank = rank
        self._job = job
        self._secret = secret
        self._nonce = nonce
        self._home_nbytes = home_nbytes
        self._homeless: BackendUnavailable | None = None
        self._cards: dict[int, Mapping[str, Any]] = {}
        self._to_send: set[int] = set()
        self._linked: set[int] = set()  # who is sent a line with the letter
        self._own_lines: dict[int, socket.socket] = {}  # our ends of those
        self._their_lines: dict[int, socket.socket] = {}  # ends that came with letters
        self._kept = False
        self._sent: set[int] = set()
        self._strangers: set[int] = set()  # who turned out not to be local
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self._reading = False
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            sock.bind(unix_address(self.name))
        except BaseException:
            sock.close()
            raise
        self._sock: socket.socket | None = sock

    def introduce(self, cards: Mapping[int, Mapping[str, Any]]) -> None:
        """Learn the cards of those who may be local; their letters are read from now on."""
        self._cards.update(cards)
        if not self._reading and self._sock is not None:
            self._reading = True
            self._loop.add_reader(self._sock.fileno(), self._read)

    async def prove(
        self, ranks: Iterable[int], linked: Iterable[int] = (), patience: float = ANSWER_DEADLINE
    ) -> set[int]:
        """Exchange letters with `ranks`, which were introduced; those who are neighbours in the end.
        Those in `linked` are sent a line, too. Who does not answer in `patience` seconds is none.

        Raises:
            BackendUnavailable: this process can have no home.
        """
        asked = set(ranks)
        if self._sock is None:
            return asked & self.neighbours.keys()
        self._linked.update(linked)
        missing = asked - self.neighbours.keys() - self._strangers
        for rank in missing:
            self._waiting.setdefault(rank, self._loop.create_future())
        self._to_send |= missing - self._sent
        self._flush()
        pending = [self._waiting[rank] for rank in missing if rank in self._waiting]
        if pending and self._homeless is None:
            await asyncio.wait(pending, timeout=min(patience, ANSWER_DEADLINE))
        for rank in missing:
            self._decided(rank)
        if self._homeless is not None:
            raise self._homeless
        return asked & self.neighbours.keys()

    def keep(self, ranks: Collection[int]) -> dict[int, socket.socket]:
        """All is agreed: let go of the neighbours that are not among `ranks`, take no more letters.

        Returns:
            The lines that came from those who stay; the caller's from now on.
        """
        self._close_box()
        self._kept = True
        for rank in [rank for rank in self.neighbours if rank not in ranks]:
            self.neighbours.pop(rank).close()
        _hang_up(self._own_lines, self.neighbours)
        _hang_up(self._their_lines, self.neighbours)
        came, self._their_lines = self._their_lines, {}
        return came

    def line(self, rank: int) -> socket.socket | None:
        """Our end of the line to one who was kept, and so has the other; the caller's from now on."""
        return self._own_lines.pop(rank, None) if self._kept else None

    def close(self) -> None:
        """Close everything. May be called twice."""
        self._close_box()
        _hang_up(self._own_lines)
        _hang_up(self._their_lines)
        while self.neighbours:
            self.neighbours.popitem()[1].close()
        if self.home is not None:
            self.home.close()
            self.home = None  # it stays mapped while a user's array is in it, and not for our sake

    # Sending.

    def _flush(self) -> None:
        """Send what is to be sent; try again soon what a full mailbox does not take."""
        self._timer = None
        if self._sock is None:
            return
        # Those above this rank first, so that not all write to rank 0 at once.
        for rank in sorted(self._to_send, key=lambda rank: (rank < self._rank, rank)):
            try:
                self._send(self._sock, rank)
            except OSError as error:
                if error.errno in _FULL:
                    continue
                self._strangers.add(rank)  # most likely of another network namespace: its name is not here
                self._decided(rank)
            self._to_send.discard(rank)
        if self._to_send:
            self._timer = self._loop.call_later(_PAUSES[min(self._tries, len(_PAUSES) - 1)], self._flush)
            self._tries += 1

    def _send(self, sock: socket.socket, rank: int) -> None:
        card, home = self._cards[rank], self._make_home()
        descriptors = array.array("i", home.descriptors() if home else ())
        nbytes, home_nonce = (home.nbytes, home.arena.nonce) if home else (0, bytes(NONCE_BYTES))
        letter = Letter(self._rank, self._nonce, nbytes, home_nonce)
        data = seal(letter, self._secret, self._job, rank, card["nonce"])
        line = None
        if home and rank in self._linked:
            line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            descriptors.append(theirs.detach())
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else []
            sock.sendmsg([data], rights, 0, unix_address(card["mail"]))
        except BaseException:
            if line is not None:
                line.close()
            raise
        finally:
            for fd in descriptors[_HOME_DESCRIPTORS:]:
                os.close(fd)
        if line is not None:
            self._own_lines[rank] = line
        self._sent.add(rank)

    def _make_home(self) -> Home | None:
        if self.home is None and self._homeless is None:
            try:
                self.home = Home(self._home_nbytes or home_bytes(), os.urandom(NONCE_BYTES))
            except BackendUnavailable as error:
                self._homeless = error  # the neighbours are told, so that they do not wait
        return self.home

    # Receiving.

    def _read(self) -> None:
        for _ in range(_LETTERS_A_TURN):
            if self._sock is None:
                return
            try:
                data, ancillary, _flags, _address = self._sock.recvmsg(
                    LETTER_BYTES + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                return  # nothing more
            descriptors = array.array("i")
            pid, user = 0, -1
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors.frombytes(payload[: len(payload) // _INT * _INT])
                elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    pid, user, _ = CREDENTIALS.unpack(payload)
            if user != os.geteuid():  # it comes over TCP, as from another host
                while descriptors:
                    os.close(descriptors.pop())
            self._letter(data, list(descriptors), pid)

    def _letter(self, data: bytes, descriptors: list[int], pid: int) -> None:
        """One datagram. Nothing of it is believed, and no descriptor looked at, before the MAC is right."""
        try:
            letter = unseal(data, self._secret, self._job, self._rank, self._nonce)
            rank = letter.sender
            card = self._cards.get(rank)
            if card is None or card["nonce"] != letter.card_nonce or rank in self.neighbours:
                return
            try:
                self._move_in(letter, descriptors, pid)
            except (AiodistError, OSError, ValueError):
                self._strangers.add(rank)
            self._decided(rank)
            if rank not in self._sent and rank not in self._to_send:  # it wrote first: it waits for an answer
                self._to_send.add(rank)
                self._flush()
        except AiodistError:
            pass  # strangers are no concern of the group
        finally:
            for fd in descriptors:
                os.close(fd)

    def _move_in(self, letter: Letter, descriptors: list[int], pid: int) -> None:
        """Make a neighbour of who wrote a letter. What found another owner is taken off the list."""
        if not letter.nbytes or not _HOME_DESCRIPTORS <= len(descriptors) <= _HOME_DESCRIPTORS + 1:
            raise WireError("a letter without a home")
        with contextlib.ExitStack() as refused:
            line: socket.socket | None = None
            if len(descriptors) > _HOME_DESCRIPTORS:
                line = refused.enter_context(socket.socket(fileno=descriptors[-1]))
                descriptors.pop()
                if (line.family, line.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
                    raise WireError("a line that is none")
            memory, loop_bell, bulk_bell = descriptors
            descriptors.clear()
            self.neighbours[letter.sender] = Neighbour(
                letter.sender, pid, (memory, loop_bell, bulk_bell), letter.nbytes, letter.home_nonce
            )
            refused.pop_all()
        if line is not None:
            self._their_lines[letter.sender] = line

    def _decided(self, rank: int) -> None:
        future = self._waiting.pop(rank, None)
        if future is not None and not future.done():
            future.set_result(None)

    # Ending.

    def _close_box(self) -> None:
        sock, self._sock = self._sock, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if sock is not None:
            if self._reading and not self._loop.is_closed():
                with contextlib.suppress(RuntimeError):
                    self._loop.remove_reader(sock.fileno())
            sock.close()
        if not self._loop.is_closed():
            for rank in list(self._waiting):
                self._decided(rank)


def _hang_up(lines: dict[int, socket.socket], but: Collection[int] = ()) -> None:
    for rank in [rank for rank in lines if rank not in but]:
        lines.pop(rank).close()
