"""Views of a job's hosts, by way of its store: whoever asks leaves a wish, a rank of each host answers.

    observe/asked/<asker>           the wish, which goes away by itself
    observe/seen/<asker>/<host>     what one host shows for it, likewise

Nothing is asked of the ranks but that: one of each host looks for wishes once a second, and only in a job
that has other hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as Late
from typing import Any

from aiodist.base.errors import AiodistError, WireError
from aiodist.base.sanitize import one_line
from aiodist.net.tasks import Tasks
from aiodist.net.wire.bounded_json import load_json
from aiodist.observe.host import host_name, read_ranks
from aiodist.observe.parcel import pack, unpack
from aiodist.observe.view import RankView
from aiodist.rendezvous import Store

ASKED, SEEN = "observe/asked/", "observe/seen/"
LINGER = 10.0  # seconds for which a wish and its answers stay
PATIENCE = 3.0  # seconds for the answers: hosts look once a second, and their ranks may have to be asked
MOST = 1 << 20  # operations of each rank; more than there are
_LONGEST = 1000  # bytes of a wish
EVERY = 0.1  # seconds between two reads of the answers

_log = logging.getLogger("aiodist.observe")

Asks = Callable[[list[RankView]], list[RankView]]


async def gather(store: Store, size: int, own: list[RankView], *, most: int, stacks: bool) -> list[RankView]:
    """What the hosts of a job show.

    Args:
        store: where the job meets, with the prefix of its name.
        size: the number of ranks; who has seen so many need not wait.
        own: what is seen already.
        most: operations of each rank that are wanted.
        stacks: whether the ranks are to say what they do.

    Raises:
        RendezvousError: the store cannot be reached.
    """
    asker = os.urandom(6).hex()
    wish = {"most": most, "stacks": stacks}
    await store.set(f"{ASKED}{asker}", json.dumps(wish).encode(), ttl=LINGER)
    found = {view.identity: view for view in own}
    taken: set[str] = set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while len({view.rank for view in found.values() if view.alive}) < size:
                for key in set(await store.list_keys(f"{SEEN}{asker}/")) - taken:
                    if len(taken) == size:  # a rank answers once
                        break
                    taken.add(key)
                    for view in await asyncio.to_thread(_views, key, await store.get(key)):
                        found.setdefault(view.identity, view)
                await asyncio.sleep(EVERY)
    await store.delete_key(f"{ASKED}{asker}")
    return list(found.values())


def _views(key: str, data: bytes) -> list[RankView]:
    try:
        return unpack(data)
    except WireError as error:
        _log.info("%s cannot be read: %s", one_line(key), one_line(str(error)))
        return []


def _wish(data: bytes) -> tuple[int, bool] | None:
    """How many operations of each rank are wanted, and whether the ranks are to say what they do; None: the
    wish cannot be read."""
    try:
        wish: Any = load_json(data, _LONGEST)
        return int(wish["most"]), bool(wish["stacks"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        _log.info("a request to see this host cannot be read: %s", one_line(str(error)))
        return None


class ViewExchange:
    """A rank's part: it answers for its host, and asks for it. `poll` and `gather` are for other threads.

    Args:
        loop: of the process.
        store: gives the job's store, with the prefix of its name.
        key: of the job.
        ask: has processes say what they do.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: Callable[[], Store], key: str, ask: Asks
    ) -> None:
        self._loop = loop
        self._store = store
        self._key = key
        self._ask = ask
        self._answered: set[str] = set()
        self._polls = Tasks()
        self._over = False

    def close(self) -> None:
        """Answer no more. On the loop."""
        self._over = True
        for task in self._polls:
            task.cancel()

    def poll(self) -> None:
        """Look for wishes, soon; unless the loop does not turn."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if not self._over and not self._polls:
            self._polls.start(self._answer())

    async def _answer(self) -> None:
        store = self._store()
        with contextlib.suppress(AiodistError):  # the store is gone: nobody can ask by it
            asked = await store.list_keys(ASKED)
            self._answered.intersection_update(asked)
            for key in set(asked) - self._answered:
                self._answered.add(key)
                wish = _wish(await store.get(key, LINGER))
                if wish is None:
                    continue
                data = await asyncio.to_thread(self._seen, *wish)
                asker = key.removeprefix(ASKED)
                await store.set(f"{SEEN}{asker}/{host_name()}.{os.getpid()}", data, ttl=LINGER)

    def _seen(self, most: int, stacks: bool) -> bytes:
        views = read_ranks(self._key)
        return pack(self._ask(views) if stacks else views, most)

    def gather(self, views: list[RankView], most: int = MOST, *, stacks: bool = True) -> list[RankView]:
        """Add what other hosts show, where the loop turns. It blocks, for some seconds at most.

        Args:
            views: of this host.
            most: operations of each rank that are wanted.
            stacks: whether the ranks are to say what they do.
        """
        size = max(view.recording.size for view in views)
        asking = gather(self._store(), size, views, most=most, stacks=stacks)
        future = asyncio.run_coroutine_threadsafe(asking, self._loop)
        try:
            return future.result(2 * PATIENCE)
        except (Late, AiodistError, CancelledError):  # the last: the loop ends
            future.cancel()
            return views
