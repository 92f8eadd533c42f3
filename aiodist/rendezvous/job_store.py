"""One store as it is served: its machine, the connections of its clients, and its log where it has one.

Answers leave in the order in which the machine gives them. Where the store is durable, they are held until
everything that happened before them is on the disk: also those of reads, which may show it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from aiodist.base.errors import AiodistError, WireError
from aiodist.base.sanitize import one_line
from aiodist.net.alarm import Alarm
from aiodist.net.wire.messages import MAX_FRAME, Encoder, Status, encode_response, pack, split_request
from aiodist.net.within import happens
from aiodist.rendezvous.connection import StoreConnection
from aiodist.rendezvous.durable import Committer
from aiodist.rendezvous.events import (
    Connected,
    Disconnected,
    Event,
    Failure,
    Push,
    StoreReply,
    StoreRequest,
    Tick,
    Wake,
)
from aiodist.rendezvous.machine import StoreMachine

MAX_SLOW = 256 << 20  # bytes that may wait for all clients that do not read; the slowest go first
MAX_HELD = 256 << 20  # bytes of answers that may wait for the disk; who asks for more is listened to later
MAX_NEWS = 512 << 20  # bytes that may wait when one change is told to all who watch; the others are cut off
MAX_BACKLOG = 64 << 20  # bytes of requests that may wait for the disk, until nobody is listened to
_SLOW = 1 << 20
_MANY = 16 << 20  # bytes of answers that leave before more are made
_READS = 16  # of what has arrived from one client, before anything is ended by time
_WORDS = 4000  # of a failure: it may name keys, and these may be as long as a request
_CLOSE_SECONDS = 1.0  # for the last words to leave
_log = logging.getLogger("aiodist.store")

Outbox = dict[StoreConnection, list[bytes]]


class JobStore:
    """A store that serves one machine, from `begin` on. Clients may come before; they wait.

    Args:
        name: for the log; the job's.
        machine: not to be touched before `begin`: it may be brought back until then.
        on_count: called when the number of clients has changed.
        on_failed: called once when the files cannot be written: nothing is answered any more.
    """

    def __init__(
        self,
        name: str,
        machine: StoreMachine,
        on_count: Callable[[], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self.name = name
        self.machine = machine
        self.clients: dict[bytes, StoreConnection] = {}
        self._loop = asyncio.get_running_loop()
        self._on_count = on_count
        self._on_failed = on_failed
        self._committer: Committer | None = None
        self.has_begun = False
        self._held: deque[tuple[int, Outbox, int]] = (
            deque()
        )  # what must last before they leave; answers; bytes
        self._held_bytes = 0
        self._made = 0  # bytes of answers in the outbox
        self._stalled: dict[StoreConnection, list[bytes]] = {}  # requests that are not looked at yet
        self._weight = 0  # bytes of requests that were not submitted yet
        self._paused = False
        self._outbox: Outbox = {}
        self._slow: set[StoreConnection] = set()
        self._alarm = Alarm(self._loop, self._tick)
        self._gone = asyncio.Event()  # nobody is connected
        self._gone.set()
        self._encoder = Encoder()
        self._packed: tuple[Any, bytes] = (None, pack(None))

    def begin(self, committer: Committer | None) -> None:
        """Answer from now on.

        Args:
            committer: what keeps the machine's changes, owned from here; None for one that lives in memory.
        """
        self.has_begun = True
        self._committer = committer
        if committer is not None:
            committer.begin(self._saved, self._save_failed)
            self.machine.restarted(self._loop.time())
            self._feed(Tick())
        for connection in list(self.clients.values()):
            self._greet(connection)
        self._go_on()

    # Clients.

    def connected(self, connection: StoreConnection) -> None:
        """Serve a client that has proven itself; `connection.client` is its id."""
        client = connection.client
        if (old := self.clients.pop(client, None)) is not None:
            # It came back before this side noticed that it was gone.
            old.abort()
            self._feed(Disconnected(client))
        self.clients[client] = connection
        _log.debug("a client of job '%s' connects: %s", one_line(self.name), connection.peer_address)
        self._gone.clear()
        self._on_count()
        if self.has_begun:
            self._greet(connection)
        else:
            self._stalled[connection] = []
            connection.pause()

    def _greet(self, connection: StoreConnection) -> None:
        connection.serves = self._committer is None  # else its answer waits for the disk, not for a look
        self._feed(Connected(connection.client))
        if self._paused:
            connection.pause()

    def frames(self, connection: StoreConnection, payloads: list[bytes]) -> None:
        """Handle requests that arrived."""
        client = connection.client
        if self.clients.get(client) is not connection:
            return
        if self._stalled and connection in self._stalled:
            self._stalled[connection] += payloads
            return
        for number, payload in enumerate(payloads, 1):
            id, settled, method, args = split_request(payload)
            self._handle(StoreRequest(client, id, method, args, settled))
            if self._made > _MANY:
                self._flush()
                if self._held_bytes > MAX_HELD:
                    self._stalled[connection] = payloads[number:]
                    connection.pause()
                    break
        if self._committer is not None:
            self._weight += sum(map(len, payloads))
        self._flush()

    def lost(self, connection: StoreConnection, error: Exception | None = None) -> None:
        """Let go of a connection that ended."""
        self._slow.discard(connection)
        self._stalled.pop(connection, None)
        client = connection.client
        if self.clients.get(client) is connection:
            del self.clients[client]
            _log.debug(
                "a client of job '%s' has gone: %s (%s)",
                *(one_line(self.name), connection.peer_address, error or "closed"),
            )
            if not self.clients:
                self._gone.set()
            self._on_count()
            self._feed(Disconnected(client))

    async def aclose(self, status: Status, why: str) -> None:
        """Tell all clients that it is over (`closing`), or that they may ask again later (`away`).

        What was asked until here is on the disk when this returns, and answered.
        """
        self._alarm.stop()
        if self._committer is not None:
            if self.machine.changed:
                self._flush()
            await self._committer.aclose()
        goodbye = encode_response(0, status, pack(why))
        for connection in list(self.clients.values()):
            connection.write(goodbye)
            connection.close()
        for abort in (False, True):
            if abort:  # somebody does not read
                for connection in list(self.clients.values()):
                    connection.abort()
            await happens(self._gone, _CLOSE_SECONDS)

    # The machine.

    def _feed(self, event: Event) -> None:
        if self.has_begun:
            self._handle(event)
            self._flush()

    def _handle(self, event: Event) -> None:
        effects = self.machine.handle(event, self._loop.time())
        several = len(effects) > 1
        for effect in effects:
            if isinstance(effect, Wake):
                self._alarm.set(effect.at)
            elif (connection := self.clients.get(effect.client)) is not None and not connection.is_over:
                if several and self._made > _MANY and not self._has_room_for_news(connection):
                    continue
                answer = self._encode(effect, several)
                self._made += len(answer)
                if connection in self._outbox:
                    self._outbox[connection].append(answer)
                else:
                    self._outbox[connection] = [answer]

    def _has_room_for_news(self, connection: StoreConnection) -> bool:
        """Whether an event with many effects may tell more; else this client is cut off, and comes back."""
        self._flush()
        if self._held_bytes + self._made <= MAX_NEWS:
            return True
        _log.warning("cut off %s: too much is told at once", connection.peer_address)
        connection.abort()
        return False

    def _tick(self) -> None:
        """Let time pass, but first read what has arrived: it was in time, however late this loop looks."""
        if self.machine.due(self._loop.time()):
            for connection in list(self.clients.values()):
                for _ in range(_READS):
                    if connection.client not in self.clients or not connection.read():
                        break
        self._feed(Tick())

    # Answers.

    def _flush(self) -> None:
        """Write once to each client, however many answers it gets; but nothing before it is saved."""
        if self._committer is not None and self._waits(self._committer):
            return
        if outbox := self._outbox:
            self._outbox, self._made = {}, 0
            self._write(outbox)

    def _waits(self, committer: Committer) -> bool:
        """Submit what changed → whether the answers must wait; then they were put aside."""
        if self.machine.changed:
            committer.submit(self.machine.take_changes(), self._weight)
            self._weight = 0
            if committer.backlog > MAX_BACKLOG and not self._paused:
                self._pause(True)
        if committer.failed is not None:
            self._outbox.clear()
            self._made = 0
            return True
        if committer.saved == committer.submitted:
            return False
        if self._outbox:
            self._held.append((committer.submitted, self._outbox, self._made))
            self._held_bytes += self._made
            self._outbox, self._made = {}, 0
        return True

    def _write(self, outbox: Outbox) -> None:
        for connection, answers in outbox.items():
            connection.write(answers[0] if len(answers) == 1 else b"".join(answers))
            if connection.unread > _SLOW:
                self._slow.add(connection)
        if self._slow:
            self._cut_slow()

    def _cut_slow(self) -> None:
        """Bound what is kept for clients that do not read. Who is cut off comes back, and sees all afresh."""
        self._slow = {connection for connection in self._slow if connection.unread > _SLOW}
        kept = sum(connection.unread for connection in self._slow)
        for connection in sorted(self._slow, key=lambda connection: -connection.unread):
            if kept <= MAX_SLOW:
                break
            kept -= connection.unread
            _log.warning(
                "cut off %s, which left %d MiB unread", connection.peer_address, connection.unread >> 20
            )
            connection.abort()
            self._slow.discard(connection)

    def _saved(self, position: int) -> None:
        held = self._held
        while held and held[0][0] <= position:
            _, outbox, size = held.popleft()
            self._held_bytes -= size
            self._write(outbox)
        if self._stalled and self._held_bytes <= MAX_HELD // 2:
            self._go_on()
        assert self._committer is not None
        if self._paused and self._committer.backlog <= MAX_BACKLOG // 2:
            self._pause(False)

    def _go_on(self) -> None:
        """Look at what was left aside."""
        stalled, self._stalled = self._stalled, {}
        for connection, payloads in stalled.items():
            if not self._paused:
                connection.resume()
            try:
                self.frames(connection, payloads)
            except AiodistError as error:
                connection.close(error)

    def _save_failed(self, error: Exception) -> None:
        self._held.clear()
        self._outbox.clear()
        self._on_failed(error)

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        for connection in self.clients.values():
            if paused:
                connection.pause()
            else:
                connection.resume()

    def _encode(self, effect: StoreReply | Failure | Push, shared: bool) -> bytes:
        id = effect.id
        try:
            if isinstance(effect, StoreReply):
                if not shared:
                    _check_size(effect.value)
                    return self._encoder.reply(id, effect.value)
                return encode_response(id, Status.reply, self._pack_once(effect.value))
            if isinstance(effect, Push):
                return encode_response(id, Status.push, self._pack_once(effect.value))
            failure: list[Any] = [effect.kind, effect.message[:_WORDS], effect.hint, effect.missing]
        except WireError as error:
            failure = ["usage", f"the answer is {error.message}", "Ask for fewer keys at a time", []]
        return encode_response(id, Status.failure, pack(failure))

    def _pack_once(self, value: Any) -> bytes:
        """Pack what goes to many clients (a gather's answer, and news) once for all of them."""
        if value is not self._packed[0]:
            _check_size(value)
            self._packed = (value, pack(value))
        return self._packed[1]


def _check_size(value: Any) -> None:
    """Refuse a list that is too large before it is packed: it may be one value, asked for a million times."""
    if type(value) is list and len(value) > 1:
        size = sum(len(part) for part in value if part is not None)
        if size > MAX_FRAME:
            raise WireError(f"a message of over {size} bytes; at most {MAX_FRAME} are allowed")
