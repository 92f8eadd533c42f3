"""A round for each `init_process_group`: its ranks meet under keys that no other round has.

torch's ranks meet by a store at MASTER_ADDR:MASTER_PORT, rank 0's or torchrun's. Where a program destroys its
groups and makes others at once, other ranks come while rank 0's store of the groups before still listens, and
go down with it; in one that stays, as torchrun's, they find the keys of groups before. So rank 0 keeps its
store when the groups are destroyed, and names each round in it; all keys of the round lie behind its name.
The others find

    no name yet                        and wait: rank 0 comes later
    the name of a round that is over   and look again
    any other name                     which is this round's

Rank 0 takes the name back when its groups are made, or are not: all have read it then, or come too late. A
group that is not ours gets what torch makes: before it, rank 0 lets go of its store.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from aiodist.base.backoff import Backoff
from aiodist.base.errors import RendezvousTimeout
from aiodist.net import kept

_NAME = "aiodist/round"
_OVER = "over"  # in place of a name that was taken back
_FIRST, _LONGEST = 0.001, 0.1  # seconds until the next look; each time twice as long
_PATIENCE = timedelta(minutes=30)  # torch's, where it says none

_numbers = itertools.count(1)  # of the rounds that this process has named, for people
_past: set[str] = set()  # rounds in which this process has made its groups

Found = tuple[Any, int, int]
"""A store, this process's rank, the size of the world."""


class TorchRound:
    """One call of `init_process_group` here."""

    def __init__(self) -> None:
        self._store: Any = None  # rank 0's
        self._name = ""

    def begin(self, connect: Callable[[timedelta], Found], patience: timedelta) -> Found:
        """Find the store of this round.

        Args:
            connect: as torch does, within so much time.
            patience: for all of it.

        Returns:
            → the same, but of the store only the keys of this round.

        Raises:
            RendezvousTimeout: rank 0 has begun no other round.
            and what `connect` and the store raise.
        """
        from torch.distributed import PrefixStore

        until, found = time.monotonic() + patience.total_seconds(), None
        backoff = Backoff(_FIRST, _LONGEST)
        while True:
            left = until - time.monotonic()
            try:
                found = found or connect(timedelta(seconds=max(left, _LONGEST)))
                store, rank, size = found
                if self._has_name(store, rank):
                    return PrefixStore(f"{_NAME}/{self._name}", store), rank, size
            except RuntimeError:  # torch's DistError is one
                if not _past or left <= 0:
                    raise
                found = None  # its host has ended, or begins anew
            if left <= 0:
                raise RendezvousTimeout(
                    f"rank 0 has not called init_process_group again within {patience.total_seconds():g} s",
                    hint="All ranks have to call it equally often",
                )
            time.sleep(min(backoff.next(), left))

    def _has_name(self, store: Any, rank: int) -> bool:
        """Name the round, or wait for its name; False: there is still that of one which is over."""
        if rank == 0:
            self._store = store
            self._name = f"{next(_numbers)}-{os.urandom(8).hex()}"
            if hasattr(store, "port"):
                kept.keep(store.port, store)
            store.set(_NAME, self._name)
            return True
        self._name = store.get(_NAME).decode(errors="replace")
        return self._name != _OVER and self._name not in _past

    def end(self, made: bool) -> None:
        """Take the name back.

        Args:
            made: whether the groups were made here.
        """
        if made and self._name:
            _past.add(self._name)
        if self._store is not None:
            with contextlib.suppress(RuntimeError):  # the store is gone, and so is the name
                self._store.set(_NAME, _OVER)
        self._store = None


_round: ContextVar[TorchRound | None] = ContextVar(
    "the round of the init_process_group that runs", default=None
)


def in_a_round(make: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Call torch's `init_process_group`, so that its ranks meet in a round of their own."""
    _hook()
    mine = TorchRound()
    before, well = _round.set(mine), False
    try:
        result = make(*args, **more)
        well = True
    finally:
        _round.reset(before)
        mine.end(well)
    return result


@functools.cache  # once in a process
def _hook() -> None:
    """Have `init_process_group` ask the round that runs, if one does, for its store."""
    from torch.distributed import distributed_c10d

    rendezvous = distributed_c10d.rendezvous

    @functools.wraps(rendezvous)
    def met(url: str, rank: int = -1, world_size: int = -1, **more: Any) -> Iterator[Found]:
        mine = _round.get()
        if mine is None:
            return rendezvous(url, rank, world_size, **more)  # type: ignore[no-any-return]
        patience = more.pop("timeout", _PATIENCE)

        def connect(left: timedelta) -> Found:
            return next(rendezvous(url, rank, world_size, timeout=left, **more))  # type: ignore[no-any-return]

        return iter([mine.begin(connect, patience)])

    distributed_c10d.rendezvous = met
