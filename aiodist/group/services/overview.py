"""An overview of the calls under way at one process, as plain values, for those who look at its job.

It is looked at once a second, from another thread: calls themselves note nothing for it but their names.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from aiodist.base.errors import A_MESSAGE
from aiodist.group.services.handlers import Handlers
from aiodist.group.services.peers import Peers

MOST = 64  # lines of each kind


class Overview:
    """The calls that have no answer, and the handlers for whose places calls wait.

    Args:
        peers: with whom there are connections.
        handlers: of this process.
    """

    def __init__(self, peers: Peers, handlers: Handlers) -> None:
        self._peers = peers
        self._handlers = handlers
        self._since: dict[tuple[Any, ...], float] = {}

    def at(self, now: float) -> dict[str, Any]:
        """The overview at a time.

        Args:
            now: the time, of the clock of all times in what is told.

        Returns:
            'asked' and 'served': calls without an answer, of this process and of others here. 'to': for each
            rank and handler the time at which the oldest was first seen, and how many there are. 'room': for
            each rank the same of the calls that wait until earlier ones are answered: since when the one
            whose turn is next. 'full': for each handler that runs as often as it may the same of the calls
            that wait for a place. 'within': as 'to', of the calls that handlers have asked that run here; the
            handler's name comes first.

        Raises:
            RuntimeError: something has changed meanwhile.
        """
        seen: dict[tuple[Any, ...], float] = {}
        found: dict[str, Any] = {"asked": 0, "served": 0, "to": [], "room": [], "full": [], "within": []}

        def since(*key: Any) -> float:
            seen[key] = self._since.get(key, now)
            return seen[key]

        handlers = list(self._handlers.by_name.values())
        named = {id(handler.slots): handler.name for handler in handlers}
        for uid, peer in list(self._peers.by_uid.items()):
            rank = self._peers.rank_of(uid)
            if peer.callee is not None:
                found["served"] += peer.callee.served
            if peer.caller is None or peer.caller.over:
                continue
            names: dict[bytes, list[int]] = {}
            within: dict[tuple[str, bytes], list[int]] = {}
            for asked in peer.caller.asking:
                names.setdefault(asked.name, []).append(asked.number)
                if asked.by is not None and (by := named.get(id(asked.by.slot))):
                    within.setdefault((by, asked.name), []).append(asked.number)
            found["asked"] += sum(map(len, names.values()))
            for name, numbers in names.items():
                at = since("to", uid, name, numbers[0])
                found["to"].append([rank, name.decode() or A_MESSAGE, at, len(numbers)])
            for (by, name), numbers in within.items():
                at = since("within", uid, by, name, numbers[0])
                found["within"].append([by, rank, name.decode() or A_MESSAGE, at, len(numbers)])
            waiting = peer.way.waiting
            for first in islice(waiting, 1):  # another one, where calls pass: then nobody waits for long
                found["room"].append([rank, since("room", uid, id(first)), len(waiting)])
        for handler in handlers:
            waiting = handler.slots.line
            for first in islice(waiting, 1):
                found["full"].append([handler.name, since("full", handler.name, id(first)), len(waiting)])
        self._since = seen
        for lines in ("to", "room", "full", "within"):
            del found[lines][MOST:]
        return found
