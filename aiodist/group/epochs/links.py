"""The control links of one world: made when its members meet, and made anew where they are torn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from aiodist.base.errors import AiodistError, GroupBroken, PeerLost, RendezvousTimeout, Tampered, name_ranks
from aiodist.group.control.plane import ControlPlane
from aiodist.group.epochs.mending import Mending
from aiodist.net.tasks import settle
from aiodist.transport import ControlLink, Endpoint

logger = logging.getLogger("aiodist.group.links")


class Links:
    """The taker of control links, from the start, since peers may dial before anything is awaited here.

    Args:
        endpoint: dials them, and is given those that others dial.
        control: the process's control plane, which they are for.
        size: number of ranks.
        unable: called as (rank, error) where this process lacks something for a link that was torn.

    Attributes:
        on_lost: called as (rank, cause) for each rank that is lost.
        closed: no links are taken any more.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        control: ControlPlane,
        size: int,
        unable: Callable[[int, GroupBroken], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._control = control
        self._size = size
        self._up: asyncio.Future[None] = self._loop.create_future()
        self.closed = False
        self.on_lost: Callable[[int, str], None] = _nothing
        self._mending = Mending(
            endpoint.rank,
            endpoint.link_control,
            self._attach,
            lambda rank, cause: control.lose(rank, cause),
            unable,
        )
        control.on_lost = self._lost
        endpoint.on_control = self._attach

    def to_dial(self) -> list[int]:
        """Ranks that this process dials: the higher one of a pair does."""
        return [neighbour for neighbour in self._control.core.neighbours if neighbour < self._endpoint.rank]

    async def connect(self, timeout: float, deadline: float) -> None:
        """Bring up the links that did not come by descriptor passing.

        Args:
            timeout: seconds of the whole meeting, for what an error says.
            deadline: of it; seconds of the loop's clock.

        Raises:
            RendezvousTimeout, PeerLost, Tampered, GroupBroken: one of them cannot be made.
        """
        try:
            async with asyncio.timeout_at(deadline), asyncio.TaskGroup() as tasks:
                for neighbour in self.to_dial():
                    tasks.create_task(self._dial(neighbour))
                if self._control.awaited() or self._up.done():
                    await self._up
        except TimeoutError:
            missing = self._control.awaited()
            raise RendezvousTimeout(
                f"no control link with {name_ranks(sorted(missing))} within {timeout:g} s",
                missing=sorted(missing),
                hint="See whether a firewall stands between the hosts",
            ) from None
        except BaseExceptionGroup as errors:
            first = next((e for e in errors.exceptions if isinstance(e, AiodistError)), None)
            raise (first or errors.exceptions[0]) from None

    async def unless_lost(self, step: Coroutine[Any, Any, None]) -> None:
        """Carry out a step that waits for all members, unless one is found to have died."""
        task = self._loop.create_task(step)
        try:
            either: set[asyncio.Future[None]] = {task, self._up}
            while not task.done():
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if self._up in either and self._up.done():
                    either.discard(self._up)
                    if self._up.exception() is not None and not task.done():
                        self._up.result()
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def fail(self, error: GroupBroken) -> None:
        """Note why the links cannot come up. Once they are, the groups say so themselves."""
        if not self._up.done() and not self.closed:
            logger.debug("rank %d does not wait for its control links: %s", self._endpoint.rank, error)
            self._up.set_exception(error)

    def process_ended(self, rank: int, pid: int, proven: bool = True) -> None:
        """Note that a process has ended, or is ending where that is not `proven`: the proof will come."""
        cause = f"process {pid} ended"
        self._control.lose(rank, cause, proven=proven)
        self.fail(PeerLost([rank], cause))

    def close(self) -> None:
        """Take no links any more, and mend none. May be repeated."""
        self.closed = True
        self._mending.close()
        if self._up.done() and not self._up.cancelled():
            self._up.exception()  # perhaps nobody waited for it

    async def _dial(self, neighbour: int) -> None:
        self._attach(neighbour, await self._endpoint.link_control(neighbour))

    def _attach(self, rank: int, link: ControlLink) -> None:
        if self.closed or not 0 <= rank < self._size:
            link.kill()
            return
        link.on_message = lambda data: self._control.received(rank, data)
        link.on_closed = lambda goodbye, cause: self._ended(rank, goodbye, cause)
        link.on_tampered = lambda error: self._torn(rank, error)
        self._control.attach(rank, link)
        self._mending.stands(rank)
        if not self._control.awaited():
            settle(self._up, None)

    def _ended(self, rank: int, goodbye: bool, cause: str) -> None:
        self._control.ended(rank, goodbye, cause)
        if not goodbye:
            self.fail(PeerLost([rank], cause))

    def _torn(self, rank: int, error: Tampered) -> None:
        """Break the groups of a control link that was altered on its path, and make the link anew."""
        self._control.tampered(rank, error)
        if not self._up.done():
            self.fail(Tampered(f"between rank {self._endpoint.rank} and rank {rank} {error.message}"))
        elif not self.closed:
            self._mending.torn(rank)

    def _lost(self, rank: int) -> None:
        """Wait no more for a rank that is lost before all links are up, noticed here or told by others."""
        self._endpoint.drop(rank)
        cause = self._control.core.lost.get(rank, "it is lost")
        self.fail(PeerLost([rank], cause))
        self.on_lost(rank, cause)


def _nothing(_rank: int, _cause: str) -> None:
    pass
