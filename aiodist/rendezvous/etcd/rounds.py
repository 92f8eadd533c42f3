"""Gathers: all ranks of a world leave a value under a name, and all get everybody's.

Below the name in the run are, for one round,

    now             which round is on, and for how many ranks
    left            written whenever a rank leaves the round without having met the others
    <round>/rank/   each rank's client, call and value
    <round>/gone/   ranks that came and gave up
    <round>/done    the round is over: all had come

The round ends by one transaction: `now` gives way to `done`. Whoever sees that all ranks are there makes it,
and that nobody has left meanwhile is its condition. So either all of a round get their values, or none does.
Values stay for KEPT_SECONDS, for the slowest to read them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from urllib.parse import quote

from aiodist.base.errors import AiodistError, RendezvousError, WireError
from aiodist.base.sanitize import one_line
from aiodist.net.wire.bounded_json import load_json
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.gateway import Gateway
from aiodist.rendezvous.etcd.ledger import ChangeLedger
from aiodist.rendezvous.etcd.refusals import NoLease
from aiodist.rendezvous.etcd.run import EtcdRun
from aiodist.rendezvous.etcd.waiting import WaitingCall, read_until
from aiodist.rendezvous.etcd.words import Item, Json, Range
from aiodist.rendezvous.rules import check_rank, did_not_come, other_world, rank_taken

KEPT_SECONDS = 60.0

_LEAVING_SECONDS = 1.0  # that a cancelled call may take to withdraw
_CLIENT, _CALL = 16, 16  # bytes of client and call before a value


@dataclass
class Gather:
    """One rank's part in a gather.

    Args:
        gateway, run, ledger: of this process.
        call: how long it may take.
        name, size, rank, value: as in `Store.gather`.
    """

    gateway: Gateway
    run: EtcdRun
    ledger: ChangeLedger
    call: WaitingCall
    name: str
    size: int
    rank: int
    value: InitVar[bytes]

    def __post_init__(self, value: bytes) -> None:
        check_rank(self.rank, self.size)
        self._deadline = self.call.deadline
        self.base = self.run.base + b"gather/" + quote(self.name, safe="").encode() + b"/"
        self._on, self._left = self.base + b"now", self.base + b"left"  # keys
        self._card = self.run.client + secrets.token_hex(_CALL // 2).encode() + value
        self._mark = self.ledger.mark()
        self._at = b""  # what the keys of the round begin with that this rank comes to
        self._now: Item | None = None  # the key `now`, as it was when this rank had come

    async def meet(self, later: Callable[[float, bytes], None]) -> list[bytes]:
        """Come, and wait for the others → what all have left.

        Args:
            later: removes the keys of a prefix after so many seconds.
        """

        async def read() -> bytes | None:
            return None if await self._is_over(later) else self._at + b"done"

        try:
            await self._come()
            while not await read_until(read, self.gateway, self.call):
                missing = await self._leave()
                if missing is not None:  # else the last came while this one was about to go
                    raise did_not_come(self.name, missing, len(missing), self.call.timeout)
            return await self._read()
        except asyncio.CancelledError:
            # Whoever cancels may count on this rank having left when the call is over.
            withdrawn = asyncio.ensure_future(self._withdraw())
            try:
                await asyncio.wait([withdrawn], timeout=_LEAVING_SECONDS)
            finally:
                withdrawn.cancel()
            raise

    async def _reads(self, *operations: Json) -> list[Range]:
        return await self.run.read(*operations, deadline=self._deadline)

    async def _changes(self, conditions: list[Json], operations: list[Json]) -> bool:
        return (await self.run.txn(conditions, operations, deadline=self._deadline)).succeeded

    @property
    def _mine(self) -> bytes:
        return self._at + b"rank/%08d" % self.rank

    def _in(self, description: bytes) -> bytes:
        """Prefix of the keys of a round, from the description of the rank that began it."""
        return self.base + _round(description)[0] + b"/"

    # Coming.

    async def _come(self) -> None:
        lease = self.run.lease
        now: Item | None = None
        while True:
            if now is None:  # it is not worth a question first whether a round is on
                description = json.dumps({"round": secrets.token_hex(8), "size": self.size}).encode()
            elif _round(now.value)[1] == self.size:
                description = now.value
            else:
                now = await self.clear_away(now)
                continue
            self._at = self._in(description)
            conditions = [
                words.unchanged(self._on, 0 if now is None else now.revision),
                words.unchanged(self._mine, 0),
            ]
            operations = [
                words.put(self._mine, self._card, lease),
                words.delete(self._at + b"gone/%08d" % self.rank),
            ]
            if now is None:
                operations.append(words.put(self._on, description, lease))
            operations.append(words.get(self._on))
            otherwise = [words.get(self._on), words.get(self._mine)]
            tried = await self.ledger.attempt(
                self._mark, conditions, operations, otherwise, note=description, deadline=self._deadline
            )
            there = tried.ranges[0].item
            if tried.succeeded and tried.note is None:
                self._now = there
                return
            if tried.note is not None:  # by an attempt whose answer was lost; others may have been here since
                self._at = self._in(tried.note)
                over = there is None or there.value != tried.note
                self._now = Item(self._on, tried.note, -1) if over else there
                return
            now = there
            if now is not None and tried.ranges[1].item is not None and now.value == description:
                now = await self.clear_away(now)

    async def now(self) -> Item | None:
        """The key that says which round is on."""
        return (await self._reads(words.get(self._on)))[0].item

    async def clear_away(self, now: Item) -> Item | None:
        """Clear away dead processes that this rank contradicts, or refuse it → the key `now` afterwards."""
        at, world = self._in(now.value), _round(now.value)[1]
        cards = (await self._reads(words.get_all(at + b"rank/")))[0].items
        in_the_way = [card for card in cards if world != self.size or _rank(card) == self.rank]
        cleared = False
        for card in in_the_way:
            conditions = [
                words.unchanged(self._on, now.revision),  # who met the others before dying has met them
                words.unchanged(card.key, card.revision),
                words.unchanged(self.run.is_here(card.value[:_CLIENT]), 0),
            ]
            left = words.put(self._left, b"", self.run.lease)
            if await self._changes(conditions, [words.delete(card.key), left]):
                cleared = True
        if not cards or cleared:
            await self._end_if_empty(at, now)
        elif world != self.size:
            ranks = [_rank(card) for card in cards]
            raise other_world(self.name, self.rank, self.size, ranks, len(ranks), world)
        elif in_the_way:
            raise rank_taken(self.name, self.rank)
        return await self.now()

    # Waiting.

    async def _is_over(self, later: Callable[[float, bytes], None]) -> bool:
        """Whether the round is over; ends it where all have come."""
        done, card, left, there = await self._reads(
            words.get(self._at + b"done"),
            words.get(self._mine),
            words.get(self._left),
            words.count_all(self._at + b"rank/"),
        )
        if done.item is not None:
            return True
        if card.item is None or card.item.value != self._card:
            raise RendezvousError(
                f"rank {self.rank} lost its place at '{self.name}': this process was cut off from etcd, "
                "and another one came as that rank",
                hint="Give each process its own RANK",
            )
        if there.count < self.size:
            return False
        assert self._now is not None
        conditions = [
            words.unchanged(self._on, self._now.revision),
            words.unchanged(self._left, 0 if left.item is None else left.item.revision),
        ]
        end = [
            words.put(self._at + b"done", b"", self.run.lease),
            words.delete(self._on),
            words.delete(self._left),
            words.delete_all(self._at + b"gone/"),
        ]
        ended = await self._changes(conditions, end)
        if ended:
            later(KEPT_SECONDS, self._at)
        return ended  # else somebody has ended it, or left: the next read tells

    async def _read(self) -> list[bytes]:
        cards = (await self._reads(words.get_all(self._at + b"rank/")))[0].items
        if len(cards) != self.size:
            raise RendezvousError(
                f"the values of '{self.name}' are gone: this process took over a minute to read them",
                hint="See what holds up this process, or its way to etcd",
            )
        return [card.value[_CLIENT + _CALL :] for card in cards]

    # Leaving.

    async def _leave(self) -> tuple[int, ...] | None:
        """Give up → the ranks that have not come; None where the round is over instead."""
        assert self._now is not None
        conditions = [words.unchanged(self._on, self._now.revision), words.holds(self._mine, self._card)]
        who = [
            words.get_all(self._at + b"rank/", names_only=True),
            words.get_all(self._at + b"gone/", names_only=True),
        ]
        operations = [
            words.delete(self._mine),
            words.put(self._at + b"gone/%08d" % self.rank, b"", self.run.lease),
            words.put(self._left, b"", self.run.lease),
            *who,
        ]
        tried = await self.ledger.attempt(self.ledger.mark(), conditions, operations, deadline=self._deadline)
        if not tried.succeeded:
            return None
        # Where an attempt did it whose answer was lost, this one has read nothing.
        ranges = tried.ranges if tried.note is None else await self._reads(*who)
        came, gone = ({_rank(item) for item in part.items} for part in ranges)
        if not came:
            await self._end_if_empty(self._at, self._now)
        away = set(range(self.size)) - came
        return tuple(sorted(away - gone or away))

    async def _end_if_empty(self, at: bytes, now: Item) -> None:
        conditions = [
            words.unchanged(self._on, now.revision),
            words.none_in(at + b"rank/", words.after(at + b"rank/")),
        ]
        await self._changes(
            conditions, [words.delete(self._on), words.delete(self._left), words.delete_all(at)]
        )

    async def _withdraw(self) -> None:
        """Withdraw a call that is cancelled, wherever it was."""
        self._deadline = asyncio.get_running_loop().time() + _LEAVING_SECONDS
        with contextlib.suppress(AiodistError, NoLease):
            if self._now is None:
                # Its mark keeps an attempt that is still under way from coming later.
                tried = await self.ledger.attempt(self._mark, [], [], deadline=self._deadline)
                if not tried.note:
                    return
                self._at, self._now = self._in(tried.note), await self.now()
                if self._now is None or self._now.value != tried.note:
                    return
            await self._leave()


def _round(description: bytes) -> tuple[bytes, int]:
    """Name and size of a round, as whoever began it has described it."""
    try:
        said = load_json(description, 4096)
        return str(said["round"]).encode(), int(said["size"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WireError(f"etcd holds something else than a meeting: {one_line(description, 100)}") from None


def _rank(card: Item) -> int:
    """The rank that has left a card; -1 for a key that is none."""
    name = card.key.rpartition(b"/")[2]
    return int(name) if name.isdigit() and len(name) <= 18 else -1
