"""The admission of nodes: the store on master_addr:master_port, and the nodes that wait there.

agents/arrivals    counts who came; the head is 0
agents/card/<id>   a node's card, as long as its agent is connected
agents/seat/<id>   the answer: where the agents' store is, and the attempt; or why there is no place
agents/over        the job's exit code, for those who still wait when it ends

The head keeps the admission store open as long as nodes may come: while the job is not complete, and, where
it may grow or replace nodes, to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiodist.base.errors import AiodistError, RendezvousError, RendezvousTimeout, UsageError, WireError
from aiodist.launch.config import LaunchConfig
from aiodist.launch.nodes.messages import number_in
from aiodist.launch.nodes.roster import Member
from aiodist.launch.nodes.store_access import FOREVER
from aiodist.net.tasks import cancel
from aiodist.net.wire.typed import JsonMessage, read

if TYPE_CHECKING:
    from aiodist.rendezvous.client import TcpStore
    from aiodist.rendezvous.server import StoreServer

_GOODBYE = 5.0
_CARD = "agents/card/"


@dataclass(frozen=True)
class Card(JsonMessage):
    """A node's description of itself; `rank` is the --node-rank that it wants, if any."""

    WHAT = "a node's card"

    host: str
    nproc: int
    nnodes: str
    rank: int | None = None


@dataclass(frozen=True)
class Answer(JsonMessage):
    """The head's answer to it: where the agents' store is, and the attempt; or why there is no place."""

    WHAT = "the head's answer"

    error: str = ""
    port: int = 0
    store: str = ""
    attempt: int = 0

    @property
    def instance(self) -> bytes:
        """The name of the very store. `WireError` where it is none."""
        try:
            return bytes.fromhex(self.store)
        except ValueError:
            raise WireError("the head's answer names no store") from None


class OverError(Exception):
    """The job has ended, with this exit code, while we waited for a place."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Admission:
    """The head's side.

    Args:
        config: the head's.
        server: the admission store; closed by `aclose`.
        book: a client of it; likewise.
        changed: called when a node came or left.
    """

    def __init__(
        self, config: LaunchConfig, server: StoreServer, book: TcpStore, changed: Callable[[], None]
    ) -> None:
        self._config = config
        self._server = server
        self._book = book
        self._changed = changed
        self._admitted: dict[int, Member] = {}  # a place is theirs until `leave`
        self._refused: set[int] = set()
        self.waiting: dict[int, Member] = {}  # by id, so by arrival
        self.complaint = ""  # what the command lines of two nodes disagree about
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        with suppress(RendezvousError):
            async for key, value in self._book.watch(_CARD):
                id = number_in(key, _CARD)
                if id is None:
                    continue
                if value is None:
                    self.waiting.pop(id, None)
                elif id not in self._admitted and id not in self._refused:
                    try:
                        await self._came(id, Card.from_json(value))
                    except WireError as error:
                        await self.refuse(id, str(error))
                self._changed()

    async def _came(self, id: int, card: Card) -> None:
        host, nnodes, wanted = card.host, card.nnodes, card.rank
        if nnodes != self._config.shown_nodes:
            ours = self._config.shown_nodes
            self.complaint = f"nodes disagree: node 0 says --nnodes {ours}, {host} says --nnodes {nnodes}"
            await self.refuse(id, self.complaint)
            return
        rivals = (*self._admitted.values(), *self.waiting.values())
        if wanted is not None and self._config.most == self._config.nnodes:
            owner = next((rival for rival in rivals if rival.wanted == wanted), None)
            if owner is not None:
                await self.refuse(id, f"--node-rank {wanted} was taken already by an agent on {owner.host}")
                return
        self.waiting[id] = Member(id, host, card.nproc, wanted)

    async def admit(self, member: Member, store: StoreServer, attempt: int) -> None:
        """Give a node that waits its place: tell it where the agents' store is."""
        self.waiting.pop(member.id, None)
        self._admitted[member.id] = member
        await self._answer(member.id, Answer("", store.port, store.instance.hex(), attempt))

    async def refuse(self, id: int, error: str) -> None:
        """Refuse a node, with this error."""
        self.waiting.pop(id, None)
        self._refused.add(id)
        await self._answer(id, Answer(error))

    async def refuse_all(self, error: str) -> None:
        """Refuse every node that waits."""
        for id in list(self.waiting):
            await self.refuse(id, error)

    def claim(self, member: Member) -> None:
        """Keep the head's own place."""
        self._admitted[member.id] = member

    def leave(self, id: int) -> None:
        """Free the place of a node that is lost: another may take its node rank."""
        self._admitted.pop(id, None)

    async def _answer(self, id: int, answer: Answer) -> None:
        with suppress(RendezvousError):
            await self._book.set(f"agents/seat/{id}", answer.to_json())

    async def aclose(self, code: int | None = None) -> None:
        """End the admission; `code`: of the job, if it has ended."""
        await cancel(self._watching)
        if code is not None:
            with suppress(RendezvousError):
                await self._book.set("agents/over", str(code))
        await self._book.aclose()
        await self._server.aclose(_GOODBYE)


async def request_place(config: LaunchConfig, book: TcpStore, host: str) -> tuple[int, Answer]:
    """Leave this node's card and wait for a place → our id, and where the agents' store is.

    Raises:
        UsageError: the head refuses this node.
        RendezvousError: no place in time.
        OverError: the job has ended.
    """
    id = await book.add("agents/arrivals", 1)
    card = Card(host, config.nproc, config.shown_nodes, config.node_rank)
    patience = config.meet_timeout + config.last_call + 10
    await book.set(f"{_CARD}{id}", card.to_json(), ttl=FOREVER)
    place = asyncio.ensure_future(book.get(f"agents/seat/{id}", timeout=patience))
    over = asyncio.ensure_future(book.get("agents/over", timeout=2 * patience))
    try:
        await asyncio.wait({place, over}, return_when=asyncio.FIRST_COMPLETED)
        if not place.done() and over.exception() is None:
            raise OverError(read(int, over.result(), "the job's exit code"))
        answer = Answer.from_json(await place)
    except RendezvousTimeout:
        raise RendezvousTimeout(
            f"node 0 at {config.meeting_place} gave this node no place within {patience:g} s",
            hint="The job has all the nodes that it takes, or still waits for others",
        ) from None
    finally:
        await cancel(place, over)
        with suppress(AiodistError, TimeoutError):  # who is told to leave waits for no place any more
            async with asyncio.timeout(_GOODBYE):
                await book.delete_key(f"{_CARD}{id}")
    if answer.error:
        raise UsageError(answer.error, hint="Give every agent the same --nnodes, and its own --node-rank")
    return id, answer
