"""Gathers: all ranks of a world leave a value under a name, and all get everybody's.

Below the name in the run are, for one round,

    now             which round is on, and for how many ranks
    left            written whenever a rank leaves the round without having met the others
    <round>/rank/   each rank's client, call and value
    <round>/gone/   ranks that came and gave up
    <round>/done    the round is over: all had come

The round ends by one transaction: `now` gives way to `done`. Whoever sees that all ranks are there makes it,
and that nobody has left meanwhile is its condition. So either all of a round get its values, or nobody does.
Values stay for KEPT_SECONDS, for the slowest to read them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from aiodist.errors import (
    AiodistError,
    RendezvousError,
    RendezvousTimeout,
    UsageError,
    WireError,
    name_ranks,
)
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.looking import look_until
from aiodist.rendezvous.etcd.refusals import NoLease
from aiodist.rendezvous.etcd.words import Item
from aiodist.sanitize import one_line
from aiodist.timeouts import spoken

if TYPE_CHECKING:
    from aiodist.rendezvous.etcd.gateway import Gateway
    from aiodist.rendezvous.etcd.ledger import Ledger, Mark
    from aiodist.rendezvous.etcd.run import Run

KEPT_SECONDS = 60.0

_LEAVING_SECONDS = 1.0  # that a cancelled call may take to withdraw
_CLIENT, _CALL = 16, 16  # bytes of client and call before a value


@dataclass(slots=True)
class Seat:
    """A rank's place in a round that is on.

    Attributes:
        at: what the round's keys begin with.
        now: the key `now`, as it was when this rank came.
        card: what this rank left.
    """

    name: str
    size: int
    rank: int
    at: bytes
    now: Item
    card: bytes
    mark: Mark


class Rounds:
    """The gathers of one process.

    Args:
        later: does something in the background after so many seconds: for tidying up.
    """

    def __init__(
        self,
        gateway: Gateway,
        run: Run,
        ledger: Ledger,
        later: Callable[[float, bytes], None],
    ) -> None:
        self._gateway = gateway
        self._run = run
        self._ledger = ledger
        self._later = later

    async def gather(
        self,
        name: str,
        size: int,
        rank: int,
        value: bytes,
        timeout: float,
        deadline: float,
        arrived: Callable[[], float],
    ) -> list[bytes]:
        """As in `Store.gather`.

        Args:
            deadline: loop time, for requests.
            arrived: called when this rank has come → the loop time until which it waits.
        """
        if not 0 <= rank < size:
            raise UsageError(f"rank {rank} is not in a world of {size}")
        card = self._run.client + secrets.token_hex(_CALL // 2).encode() + value
        mark = self._ledger.mark()
        seat: Seat | None = None
        try:
            seat = here = await self._come(name, size, rank, card, mark, deadline)

            async def look() -> bytes | None:
                return None if await self._is_over(here, deadline) else here.at + b"done"

            while not await look_until(look, self._gateway, arrived):
                missing = await self._leave(here, deadline)
                if missing is not None:  # else the last came while this one was about to go
                    raise RendezvousTimeout(
                        f"{name_ranks(missing)} did not come to '{name}' within {spoken(timeout)}",
                        missing=missing,
                        hint="See whether every process was started, with the same WORLD_SIZE and store, "
                        "and what it prints",
                    )
            return await self._read(here, deadline)
        except asyncio.CancelledError:
            # Whoever cancels may count on this rank having left when the call is over.
            withdrawn = asyncio.ensure_future(self._withdraw(name, rank, card, mark, seat))
            try:
                await asyncio.wait([withdrawn], timeout=_LEAVING_SECONDS)
            finally:
                withdrawn.cancel()
            raise

    # Coming.

    def _base(self, name: str) -> bytes:
        return self._run.base + b"gather/" + quote(name, safe="").encode() + b"/"

    async def _come(self, name: str, size: int, rank: int, card: bytes, mark: Mark, deadline: float) -> Seat:
        base, lease = self._base(name), self._run.lease
        now: Item | None = None
        while True:
            if now is None:  # it is not worth a question first whether a round is on
                description = json.dumps({"round": secrets.token_hex(8), "size": size}).encode()
            else:
                description = now.value
                if _round(description)[1] != size:
                    await self._settle(now, name, size, rank, deadline)
                    now = await self._now(base, deadline)
                    continue
            at = base + _round(description)[0] + b"/"
            mine = at + b"rank/%08d" % rank
            conditions = [
                words.unchanged(base + b"now", 0 if now is None else now.revision),
                words.unchanged(mine, 0),
            ]
            operations = [words.put(mine, card, lease), words.delete(at + b"gone/%08d" % rank)]
            if now is None:
                operations.append(words.put(base + b"now", description, lease))
            operations.append(words.get(base + b"now"))
            otherwise = [words.get(base + b"now"), words.get(mine)]
            tried = await self._ledger.attempt(
                mark, conditions, operations, otherwise, note=description, deadline=deadline
            )
            if tried.happened:
                if tried.note is None:
                    there = tried.ranges[-1].item
                else:  # by an attempt whose answer was lost; others may have been here meanwhile
                    at = base + _round(tried.note)[0] + b"/"
                    there = tried.ranges[0].item
                    if there is None or there.value != tried.note:
                        there = Item(base + b"now", tried.note, -1)  # the round is over
                assert there is not None
                return Seat(name, size, rank, at, there, card, mark)
            now = tried.ranges[0].item
            if now is not None and tried.ranges[1].item is not None and now.value == description:
                await self._settle(now, name, size, rank, deadline)
                now = await self._now(base, deadline)

    async def _now(self, base: bytes, deadline: float) -> Item | None:
        found, _ = await self._run.txn([], [words.get(base + b"now")], deadline=deadline)
        return found.ranges[0].item

    async def _settle(self, now: Item, name: str, size: int, rank: int, deadline: float) -> None:
        """This rank contradicts those that are there. Clear away who is dead, or say so."""
        base, (round, world) = self._base(name), _round(now.value)
        at = base + round + b"/"
        found, _ = await self._run.txn([], [words.get_all(at + b"rank/")], deadline=deadline)
        cards = found.ranges[0].items
        in_the_way = [card for card in cards if world != size or _rank(card) == rank]
        cleared = False
        for card in in_the_way:
            holder = self._run.is_here(card.value[:_CLIENT])
            conditions = [
                words.unchanged(base + b"now", now.revision),  # who met the others before dying has met them
                words.unchanged(card.key, card.revision),
                words.unchanged(holder, 0),
            ]
            left = words.put(base + b"left", b"", self._run.lease)
            done, _ = await self._run.txn(conditions, [words.delete(card.key), left], deadline=deadline)
            cleared = cleared or done.succeeded
        if not cards or cleared:
            await self._end_if_empty(base, at, now, deadline)
        elif world != size:
            raise RendezvousError(
                f"rank {rank} comes to '{name}' in a world of {size}, "
                f"{name_ranks([_rank(card) for card in cards])} in one of {world}",
                hint="Give every process the same WORLD_SIZE",
            )
        elif in_the_way:
            raise RendezvousError(
                f"two processes are rank {rank} at '{name}'", hint="Give each process its own RANK"
            )

    # Waiting.

    async def _is_over(self, seat: Seat, deadline: float) -> bool:
        """Whether the round is over; ends it where all have come."""
        base = self._base(seat.name)
        mine = seat.at + b"rank/%08d" % seat.rank
        look = [
            words.get(seat.at + b"done"),
            words.get(mine),
            words.get(base + b"left"),
            words.count_all(seat.at + b"rank/"),
        ]
        found, _ = await self._run.txn([], look, deadline=deadline)
        done, card, left, there = found.ranges
        if done.item is not None:
            return True
        if card.item is None or card.item.value != seat.card:
            raise RendezvousError(
                f"rank {seat.rank} lost its place at '{seat.name}': this process was cut off from etcd, "
                "and another one came as that rank",
                hint="Give each process its own RANK",
            )
        if there.count < seat.size:
            return False
        conditions = [
            words.unchanged(base + b"now", seat.now.revision),
            words.unchanged(base + b"left", 0 if left.item is None else left.item.revision),
        ]
        end = [
            words.put(seat.at + b"done", b"", self._run.lease),
            words.delete(base + b"now"),
            words.delete(base + b"left"),
            words.delete_all(seat.at + b"gone/"),
        ]
        ended, _ = await self._run.txn(conditions, end, deadline=deadline)
        if ended.succeeded:
            self._later(KEPT_SECONDS, seat.at)
        return ended.succeeded  # else somebody has ended it, or left: the next look tells

    async def _read(self, seat: Seat, deadline: float) -> list[bytes]:
        found, _ = await self._run.txn([], [words.get_all(seat.at + b"rank/")], deadline=deadline)
        cards = found.ranges[0].items
        if len(cards) != seat.size:
            raise RendezvousError(
                f"the values of '{seat.name}' are gone: this process took over a minute to read them",
                hint="See what holds up this process, or its way to etcd",
            )
        return [card.value[_CLIENT + _CALL :] for card in cards]

    # Leaving.

    async def _leave(self, seat: Seat, deadline: float) -> tuple[int, ...] | None:
        """Give up → the ranks that have not come; None where the round is over instead."""
        base = self._base(seat.name)
        mine = seat.at + b"rank/%08d" % seat.rank
        conditions = [words.unchanged(base + b"now", seat.now.revision), words.holds(mine, seat.card)]
        operations = [
            words.delete(mine),
            words.put(seat.at + b"gone/%08d" % seat.rank, b"", self._run.lease),
            words.put(base + b"left", b"", self._run.lease),
            words.get_all(seat.at + b"rank/", names_only=True),
            words.get_all(seat.at + b"gone/", names_only=True),
        ]
        tried = await self._ledger.attempt(self._ledger.mark(), conditions, operations, deadline=deadline)
        if not tried.happened:
            return None
        if tried.note is not None:  # by an attempt whose answer was lost
            look = operations[-2:]
            found, _ = await self._run.txn([], look, deadline=deadline)
            tried.ranges = found.ranges
        came, gone = ({_rank(item) for item in part.items} for part in tried.ranges)
        if not came:
            await self._end_if_empty(base, seat.at, seat.now, deadline)
        away = set(range(seat.size)) - came
        return tuple(sorted(away - gone or away))

    async def _end_if_empty(self, base: bytes, at: bytes, now: Item, deadline: float) -> None:
        conditions = [
            words.unchanged(base + b"now", now.revision),
            words.none_in(at + b"rank/", words.after(at + b"rank/")),
        ]
        end = [words.delete(base + b"now"), words.delete(base + b"left"), words.delete_all(at)]
        await self._run.txn(conditions, end, deadline=deadline)

    async def _withdraw(self, name: str, rank: int, card: bytes, mark: Mark, seat: Seat | None) -> None:
        """The call is cancelled, wherever it was."""
        deadline = asyncio.get_running_loop().time() + _LEAVING_SECONDS
        with contextlib.suppress(AiodistError, NoLease):
            if seat is None:
                # Its mark keeps an attempt that is still under way from coming later.
                tried = await self._ledger.attempt(mark, [], [], deadline=deadline)
                if tried.note is None:
                    return
                base = self._base(name)
                now = await self._now(base, deadline)
                if now is None or now.value != tried.note:
                    return
                round, size = _round(tried.note)
                seat = Seat(name, size, rank, base + round + b"/", now, card, mark)
            await self._leave(seat, deadline)


def _round(description: bytes) -> tuple[bytes, int]:
    """Name and size of a round, as whoever began it has described it."""
    try:
        said = json.loads(description)
        return str(said["round"]).encode(), int(said["size"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WireError(f"etcd holds something else than a meeting: {one_line(description, 100)}") from None


def _rank(card: Item) -> int:
    """Of who has left a card; -1 for a key that is none."""
    name = card.key.rpartition(b"/")[2]
    return int(name) if name.isdigit() and len(name) <= 18 else -1
