"""An endpoint over sockets: it listens, greets peers that dial, and dials those that it sends to.

Each process listens on TCP, and on Linux on an abstract Unix socket too. The sender of a channel dials:
over the Unix socket, with the shared segment for the bulk, where the peer is local; over TCP
otherwise. That two ranks are local is proved by doing it (`prove_local`, by `local_peers`); the boot ids
in their cards only save the attempt between hosts.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from aiodist.base.environment import Tls, is_loopback
from aiodist.base.environment.process import host_id
from aiodist.base.environment.tuning import EAGER_BUDGET
from aiodist.base.errors import (
    AiodistError,
    AuthenticationError,
    BackendUnavailable,
    GroupBroken,
    PeerLost,
    UsageError,
    WireError,
    name_ranks,
)
from aiodist.net.admission import PATIENCE, places
from aiodist.net.listener import Listener
from aiodist.net.refusals import Refusals
from aiodist.net.shortage import shortage
from aiodist.net.sockets import connect, resolve
from aiodist.net.tasks import Tasks
from aiodist.net.traffic import Traffic
from aiodist.net.users import send_away, why_not
from aiodist.net.wire.handshake import NONCE_BYTES, Handshake, Identity, Purpose
from aiodist.transport import dialing
from aiodist.transport.base import Route
from aiodist.transport.control_link import UNACKNOWLEDGED, ControlLink
from aiodist.transport.greeting import Greeting
from aiodist.transport.line import Line, SocketLine
from aiodist.transport.link import Waking
from aiodist.transport.listening import listen_tcp, listen_unix, not_mine, unix_address
from aiodist.transport.local_handshake import Me
from aiodist.transport.local_peers import ANSWER_DEADLINE, LocalPeers
from aiodist.transport.mapped import MappedLink
from aiodist.transport.peers import Endpoint, Peer
from aiodist.transport.shm.arena import available
from aiodist.transport.shm.segment import PeerSegment, Segment
from aiodist.transport.stream import StreamLink

Mode = Literal["tcp", "shm", "auto"]
AnyLink = StreamLink | ControlLink | SocketLine

NEWS = 0.5
"""Seconds in which it is known, of a process of this host, that it has ended, or what it lacks."""

CONTROL_LINKS = 4
"""Control links with one rank, at most: it needs one, and a moment for the next after the end of that."""

_log = logging.getLogger("aiodist.transport")


class SocketEndpoint(Endpoint):
    """An `Endpoint` over sockets and shared memory; it listens as soon as it exists.

        Args:
        loop: the event loop, running or about to run.
        rank: this process's global rank.
        job: the job's id; peers of another job are refused.
        secret: the job's secret; peers that do not know it are refused.
        host: numeric address to listen on (IPv4 or IPv6).
        mode: "tcp": TCP only, as if every peer were on another host; "shm": shared memory only;
            "auto": shared memory where it works.
        eager_budget: bytes per (channel, context); the same on every rank.
        segment_nbytes: virtual bytes of the memory that this process shares; None: `segment_bytes`.
        tls: for connections over TCP; None: they go without.
        boot: names the host: ranks with another name are no local peers. None: `host_id`; others
            are for tests.

    Raises:
        RendezvousError: the address cannot be bound.
        UsageError: mode "shm" on a platform without it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rank: int,
        job: str,
        secret: bytes,
        host: str = "127.0.0.1",
        *,
        mode: Mode = "auto",
        eager_budget: int = EAGER_BUDGET,
        segment_nbytes: int | None = None,
        tls: Tls | None = None,
        boot: str | None = None,
    ) -> None:
        super().__init__(loop, rank, eager_budget=eager_budget)
        if mode == "shm" and not available():
            raise UsageError("shared memory needs Linux", hint="Set AIODIST_TRANSPORT=tcp")
        self._me = Me(rank, job, secret, secrets.token_bytes(NONCE_BYTES))
        self._tls = tls
        self._vouched = bool(secret or tls)
        self.exposed = not (self._vouched or is_loopback(host))
        self._mode = mode
        self._cards: dict[int, Mapping[str, Any]] = {}
        self._introduced = asyncio.Event()
        self._routes: dict[int, Route] = {}
        self._dialing: set[int] = set()
        self._tasks = Tasks()
        self._links: dict[StreamLink, int] = {}  # and the rank at the other end
        self._waking: Waking | None = None
        self._greetings: set[Greeting] = set()
        self._incoming: dict[Greeting, asyncio.Task[None]] = {}  # not authenticated yet, in order of arrival
        self._most_unauthenticated = places()
        self._refusals = Refusals(_log)
        self._local_peers: LocalPeers | None = None
        listening: list[socket.socket] = []
        try:
            listening.append(listen_tcp(host))
            self.card = {"nonce": self._me.nonce, "tcp": [host, listening[0].getsockname()[1]]}
            if mode != "tcp" and available():
                self._local_peers = LocalPeers(loop, self._me, segment_nbytes)
                name, unix = listen_unix()
                listening.append(unix)
                self.card |= {"unix": name, "boot": boot or host_id(), "mail": self._local_peers.name}
            self._listener = Listener(
                loop, listening, self._welcome, self._refusals.turned_away, _log, self._nobody_accepted
            )
        except BaseException as error:
            for sock in listening:
                sock.close()
            if self._local_peers is not None:
                self._local_peers.close()
            if isinstance(error, OSError):
                raise not_mine(host, error) from error
            raise

    @classmethod
    async def open(cls, *, host: str = "127.0.0.1", **arguments: Any) -> SocketEndpoint:
        """An endpoint on the running loop. The arguments are the class's, but `host` may be a name.

        Raises:
            RendezvousError: `host` does not resolve, or is no address of this host.
        """
        try:
            found = await resolve(host, 0)
        except OSError as error:
            raise not_mine(host, error) from error
        return cls(asyncio.get_running_loop(), host=str(found[0][1][0]), **arguments)

    # Endpoint.

    def introduce(self, cards: Mapping[int, Mapping[str, Any]]) -> None:
        self._cards.update(cards)
        self._introduced.set()
        if self._local_peers is not None:
            others = {rank: card for rank, card in cards.items() if rank != self.rank}
            self._local_peers.introduce({r: card for r, card in others.items() if self._may_be_local(card)})

    @property
    def segment(self) -> Segment | None:
        return None if self._local_peers is None else self._local_peers.segment

    @property
    def peer_segments(self) -> Mapping[int, PeerSegment]:
        return {} if self._local_peers is None else self._local_peers.peer_segments

    async def prove_local(
        self, ranks: Iterable[int], linked: Iterable[int] = (), patience: float = ANSWER_DEADLINE
    ) -> set[int]:
        self._check_open()
        asked = set(ranks)
        candidates = {rank for rank in asked if rank != self.rank and self._may_be_local(self._card(rank))}
        proved = asked & {self.rank}
        if self._local_peers is not None and candidates:
            try:
                proved |= await self._local_peers.prove(candidates, linked, patience)
            except BackendUnavailable:
                if self._mode == "shm":
                    raise
            self._tell_lack(candidates - proved, self._local_peers.lacking)
        return proved

    def _tell_lack(self, ranks: set[int], error: OSError | None) -> None:
        """Report ranks of this host that could not be proved to share memory for want of something here."""
        lack = shortage(error) if ranks else None
        if lack is None:
            return
        words = f"rank {self.rank} {lack.what}, so it cannot share memory with {name_ranks(sorted(ranks))}"
        if self._mode == "shm":
            raise BackendUnavailable(words, hint=lack.hint)
        _log.warning("%s; messages go over TCP. %s", words, lack.hint)

    def keep_peer_segments(self, ranks: Collection[int]) -> None:
        if self._local_peers is not None:
            for rank, line in self._local_peers.keep(ranks).items():
                self._loop.call_soon(self.on_control, rank, self._control_on(line, rank))

    def wake_by(self, waking: Waking | None) -> None:
        self._waking = waking
        for link in self._links:
            if isinstance(link, MappedLink):
                link.wake_by(waking)

    def traffic(self) -> list[tuple[int, Traffic]]:
        links = list(self._links.items())  # in one step: nothing else runs meanwhile
        return [(rank, seen) for link, rank in links if (seen := link.traffic()) is not None]

    def peer_pid(self, rank: int) -> int | None:
        peer_segment = self.peer_segments.get(rank)
        return super().peer_pid(rank) if peer_segment is None else peer_segment.pid or None

    def route(self, rank: int, route: Route) -> None:
        self._check_open()
        if rank in self._dialing and self._routes.get(rank) != route:
            raise UsageError(f"the channel to rank {rank} is being connected")
        peer = self._peers.get(rank)
        if peer is not None and peer.over not in (None, route):
            raise UsageError(f"the channel to rank {rank} runs over {peer.over} already")
        self._routes[rank] = route

    async def link_control(self, rank: int) -> ControlLink:
        self._check_open()
        line = self._local_peers.line(rank) if self._local_peers is not None else None
        if line is not None:
            return self._control_on(line, rank)
        try:
            control = await self._tasks.start(self._persist(rank, Purpose.control, routed=False))
        except (OSError, AiodistError) as error:
            raise self._unable(rank, error) or PeerLost([rank], dialing.cannot(error)) from error
        assert isinstance(control, ControlLink)
        return control

    async def dial_line(self, rank: int) -> Line:
        self._check_open()
        dialing = self._tasks.start(self._persist(rank, Purpose.service, routed=False))
        try:
            await asyncio.wait([dialing])
        except asyncio.CancelledError:
            dialing.cancel()
            raise
        if dialing.cancelled():
            raise ConnectionAbortedError("the epoch ended meanwhile")
        line = dialing.result()
        assert isinstance(line, SocketLine)
        return line

    def kill(self) -> None:
        self._listener.close()
        self._refusals.log_omitted()
        for task in tuple(self._tasks):
            if not self._loop.is_closed():
                task.cancel()
        super().kill()
        for link in tuple(self._links):
            link.kill()
        for greeting in tuple(self._greetings):
            greeting.close()
        if self._local_peers is not None:
            self._local_peers.close()  # last: links look at the segments

    # Dialing.

    def _dial(self, peer: Peer) -> None:
        if peer.rank not in self._dialing and not self.closed:
            self._dialing.add(peer.rank)
            self._tasks.start(self._dial_data(peer))

    async def _dial_data(self, peer: Peer) -> None:
        """Connect the outgoing channel by the first way that works."""
        try:
            link = await self._persist(peer.rank, Purpose.data)
        except (OSError, AiodistError) as error:
            self._dialing.discard(peer.rank)
            own = self._unable(peer.rank, error)
            if isinstance(error, GroupBroken) and own is None:
                # It had proved itself, so it lacks something, or has died. In either case it is known soon.
                peer.sender.kill()
                self._loop.call_later(NEWS, self._hung_up, peer, error)
            elif own is None:
                self._lost(peer, dialing.cannot(error))
            elif not self.closing:
                peer.sender.kill()
                self.observer.unable(peer.rank, own)
            return
        assert isinstance(link, StreamLink)
        self._dialing.discard(peer.rank)
        peer.over = "shm" if isinstance(link, MappedLink) else "tcp"
        _log.debug("rank %d sends to rank %d over %s", self.rank, peer.rank, peer.over)
        peer.sender.attach(link)

    def _hung_up(self, peer: Peer, error: GroupBroken) -> None:
        if not peer.ended and not self.closing:
            self.observer.unable(peer.rank, error)

    def _unable(self, rank: int | None, error: BaseException) -> GroupBroken | None:
        """The error if a connection with a rank, or any, failed for want of something of this process's."""
        lack = shortage(error)
        if lack is None:
            return None
        what = "take connections" if rank is None else f"connect with rank {rank}"
        return GroupBroken(f"rank {self.rank} {lack.what}, so it cannot {what}", hint=lack.hint)

    def _nobody_accepted(self, error: OSError) -> None:
        own = self._unable(None, error)
        if own is not None and not self.closing:
            self.observer.unable(None, own)

    async def _persist(self, rank: int, purpose: Purpose, *, routed: bool = True) -> AnyLink:
        """A connection, however busy the loop at its other end is: its waiter has a deadline."""
        return await dialing.persist(lambda: self._first(rank, purpose, self._ways(rank, routed=routed)))

    def _ways(self, rank: int, *, routed: bool = True) -> list[Route]:
        """The routes to a rank, best first; routed: as `route` said."""
        local = self._may_be_local(self._card(rank))
        if routed and rank in self._routes:
            return [self._routes[rank]]
        if self._mode == "shm":
            return ["shm"]
        return ["shm", "tcp"] if local and self._mode == "auto" else ["tcp"]

    def _card(self, rank: int) -> Mapping[str, Any]:
        card = self._cards.get(rank)
        if card is None:
            raise UsageError(f"rank {rank} was never introduced")
        return card

    def _may_be_local(self, card: Mapping[str, Any]) -> bool:
        return "mail" in card and self.card.get("boot") == card.get("boot")

    async def _first(self, rank: int, purpose: Purpose, ways: list[Route]) -> AnyLink:
        """A connection over the first way that works."""
        for way in ways[:-1]:
            try:
                return await self._connect(rank, purpose, way)
            except (AuthenticationError, dialing.Unanswered):
                raise
            except (OSError, AiodistError) as error:
                _log.debug("rank %d cannot reach rank %d over %s: %s", self.rank, rank, way, error)
                continue
        return await self._connect(rank, purpose, ways[-1])

    async def _connect(self, rank: int, purpose: Purpose, way: Route) -> AnyLink:
        """One connection, from socket to link."""
        card = self._cards[rank]
        async with asyncio.timeout(dialing.DIAL_DEADLINE):
            if way == "shm":
                if "unix" not in card or not available():
                    raise UsageError(f"rank {rank} shares no memory with this process")
                sock = await dialing.connect_local(unix_address(card["unix"]))
            else:
                sock = await connect(*card["tcp"])
        greeting = self._greeting(sock)
        try:
            return await self._introduce_to(greeting, rank, purpose)
        finally:
            greeting.close()
            self._greetings.discard(greeting)

    async def _introduce_to(self, greeting: Greeting, rank: int, purpose: Purpose) -> AnyLink:
        """Shake hands with the rank that this process has dialed."""
        card = self._cards[rank]
        handshake = Handshake.client(*self._proves(purpose), to=card["nonce"])
        try:
            theirs = await greeting.shake(handshake, self._tls)
        except ConnectionError as error:
            raise dialing.Unanswered(error.errno, error.strerror or str(error)) from error
        if theirs.rank != rank or theirs.card != card["nonce"]:
            raise AuthenticationError(f"another process has taken the address of rank {rank}")
        if why := greeting.why_not(self._vouched):
            raise AuthenticationError(f"another process answers as rank {rank}: {why}")
        try:
            return self._link(greeting, rank, purpose, dialed=True)
        except ConnectionError as error:
            raise dialing.hung_up(rank, self.rank) from error

    def _link(self, greeting: Greeting, rank: int, purpose: Purpose, *, dialed: bool) -> AnyLink:
        """The link that a greeted connection becomes."""
        pid = greeting.peer_pid()
        if pid is not None:
            self._peer(rank).pid = pid
        sock = greeting.release()
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if purpose is Purpose.control:
            return self._control_on(sock, rank, greeting.leftover)
        if purpose is Purpose.service:
            return SocketLine(self._loop, sock, greeting.leftover)
        theirs = self.peer_segments.get(rank) if greeting.is_unix else None
        if theirs is not None and self.segment is not None:
            mapped = MappedLink(
                self._loop, sock, self.segment, theirs, greeting.leftover, rank=rank, dialed=dialed
            )
            mapped.wake_by(self._waking)
            link: StreamLink = mapped
        else:
            link = StreamLink(self._loop, sock, greeting.leftover)
        self._links[link] = rank
        link.on_gone = partial(self._links.pop, link, None)
        return link

    def _control_on(self, sock: socket.socket, rank: int, leftover: bytes = b"") -> ControlLink:
        return self._control(SocketLine(self._loop, sock, leftover, silence=UNACKNOWLEDGED), rank)

    # Accepting.

    def _welcome(self, sock: socket.socket, deadline: float) -> None:
        """Greet a connection that came in, and has something to read."""
        if why := why_not(sock, self._vouched):
            self._refusals.turned_away(sock, why)
            send_away(sock, why)
            return
        if len(self._incoming) >= self._most_unauthenticated:
            oldest = next(iter(self._incoming))
            self._refusals.say(oldest.peer_address, f"more than {self._most_unauthenticated} shake hands")
            self._incoming.pop(oldest).cancel()
            oldest.close()  # a task that had no turn yet does not do it
            self._greetings.discard(oldest)
        greeting = self._greeting(sock)
        self._incoming[greeting] = self._tasks.start(self._greet(greeting, deadline))

    async def _greet(self, greeting: Greeting, deadline: float) -> None:
        """Find out who dialed, and hand the connection over."""
        rank = -1
        try:
            async with asyncio.timeout_at(deadline):
                theirs = await greeting.shake(Handshake.server(*self._proves(Purpose.data)), self._tls)
            async with asyncio.timeout(dialing.DIAL_DEADLINE):
                await self._introduced.wait()  # it may have our card before we have its
            card = self._cards.get(theirs.rank)
            if card is None or card["nonce"] != theirs.card:
                raise AuthenticationError(f"it is not the rank {theirs.rank} of this job")
            peer, rank = self._peer(theirs.rank), theirs.rank
            if theirs.purpose is Purpose.data and (peer.ended or peer.receiver.link is not None):
                return
            links = sum(control.rank == theirs.rank for control in self._controls)
            if theirs.purpose is Purpose.control and links >= CONTROL_LINKS:
                raise AuthenticationError(f"rank {theirs.rank} has {CONTROL_LINKS} control links already")
            link = self._link(greeting, theirs.rank, theirs.purpose, dialed=False)
            if isinstance(link, ControlLink):
                self.on_control(theirs.rank, link)
            elif isinstance(link, SocketLine):
                self.on_line(theirs.rank, link)
            elif peer.ended or peer.receiver.link is not None:
                link.kill()
            else:
                peer.receiver.attach(link)
        except AiodistError as error:  # it was told why; the group is not, if it is not authenticated
            self._refusals.say(greeting.peer_address, str(error))
            if rank >= 0 and isinstance(error, WireError):  # but this one is authenticated
                self._lost(self._peer(rank), f"protocol error: {error.message}")
        except TimeoutError:
            self._refusals.say(greeting.peer_address, f"it did not prove itself within {PATIENCE:g} s")
        except OSError as error:
            own = self._unable(rank, error) if rank >= 0 else None  # likewise
            if own is not None and not self.closing:
                self.observer.unable(rank, own)  # before it sees that the connection ends
        finally:
            greeting.close()
            self._greetings.discard(greeting)
            self._incoming.pop(greeting, None)

    def _proves(self, purpose: Purpose) -> tuple[Identity, bytes, bytes]:
        """The arguments of a handshake: who this process is, what proves it, a fresh nonce."""
        me = self._me
        return Identity(me.job, purpose, me.rank, me.nonce), me.secret, secrets.token_bytes(NONCE_BYTES)

    def _greeting(self, sock: socket.socket) -> Greeting:
        greeting = Greeting(self._loop, sock)
        self._greetings.add(greeting)
        return greeting

    # Ending.

    def _stop_accepting(self) -> None:
        self._listener.close()

    async def _end_tasks(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
