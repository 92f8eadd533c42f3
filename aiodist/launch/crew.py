"""One attempt on one node: its workers, from their start until all have ended and nothing of them is left.

`Supervisor` decides when they are stopped, `mend` what follows from a failure; this shell owns processes,
timers and descriptors. A worker that comes back is a new process in the same place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aiodist.base.errors import UsageError
from aiodist.base.terminal import hue, takes_colour
from aiodist.launch.doing import doing
from aiodist.launch.nodes.messages import FAILURE, Elastic, Workers, failure, late_in
from aiodist.launch.nodes.nodes import Nodes
from aiodist.launch.report import how_it_ended
from aiodist.launch.restarts import Cover, Mend, RestartDelay, Scene, mend, stays
from aiodist.launch.supervisor import (
    FAILURE_GRACE,
    Asked,
    Away,
    Back,
    Elsewhere,
    Ended,
    Event,
    Over,
    Send,
    Supervisor,
    Tick,
    Wake,
)
from aiodist.launch.verdict import NEVER, Ending, NodeReport, by_its_words, lost_nodes
from aiodist.launch.worker.alike import Alike, ranges
from aiodist.launch.worker.starting import AgentContext, start_worker
from aiodist.launch.worker.states import INTERVAL, Stopped, state_of
from aiodist.launch.worker.worker import Worker, ask_all
from aiodist.net.tasks import cancel
from aiodist.net.within import happens

logger = logging.getLogger("aiodist.launch.crew")
_SYMPTOMS_APART = 0.5
"""Seconds in which workers that fail because of another one are seen to fail."""


class Crew:
    """The workers of one attempt on this node.

    Args:
        context: the agent's.
        nodes: the other nodes; in the place of this attempt.
    """

    def __init__(self, context: AgentContext, nodes: Nodes) -> None:
        self._context = context
        self._config = context.config
        self._nodes = nodes
        self._place = nodes.place
        self._supervisor = Supervisor(self._config.nproc, self._config.shutdown_timeout)
        self._loop = asyncio.get_running_loop()
        if self._config.nproc > 1:
            context.alike = Alike(self._loop, context.err, self._prefix_of)
        self._over = asyncio.Event()
        self._halt = asyncio.Event()  # nobody is started again
        self._error: BaseException | None = None
        self._workers: dict[int, Worker] = {}
        self._began: dict[int, float] = {}  # loop time at which each started last
        self._endings: list[Ending] = []
        self._doing: dict[int, tuple[str, ...]] = {}  # by rank: what it did while others waited for it
        self._tasks: set[asyncio.Task[None]] = set()
        self._unswept: set[Worker] = set()
        self._finished: list[int] = []  # ranks that have ended well, of which the workers are yet to be told
        self._telling = False
        self._backoff = [RestartDelay() for _ in range(self._config.nproc)]
        self._cover = Cover()
        self._began_ns = 0
        self._spared: tuple[int, ...] = ()
        self._said = ""  # of the other nodes, when the attempt ended because of them
        self._turn: asyncio.Task[int] | None = None
        self._quiet = False  # the end was announced
        self.signum = 0  # the operator's signal, where it came before any failure

    @property
    def alive(self) -> int:
        """The number of workers that live."""
        return len(self._supervisor.alive)

    @property
    def over(self) -> bool:
        """Whether all have ended, and none is about to be started again."""
        return self._supervisor.over

    def start(self) -> None:
        """Start all; `UsageError` where that cannot be done (some may run: `kill_all`)."""
        self._began_ns = time.monotonic_ns()
        for local_rank in range(self._config.nproc):
            self._start(local_rank, self._nodes.roster.restarts)
        for local_rank in range(self._config.nproc):
            self._confirm(local_rank)
        if os.path.isdir("/proc/self"):
            self._loop.call_later(INTERVAL, self._look, Stopped())

    async def wait(self) -> None:
        """Wait until all have ended, and what they left behind is gone."""
        await self._over.wait()
        self._context.settle()
        while self._tasks and self._error is None:
            await asyncio.wait(self._tasks)
        if self._error is not None:
            raise self._error

    # -- what happens ---------------------------------------------------------------------------

    def asked(self, signum: int) -> None:
        """End the attempt, as the operator wishes."""
        if self._turn is None:
            self.signum = signum
            self._trouble()
        else:
            self._do(self._nodes.stop(signum))  # it failed before; it does not begin again either
        self._quiet = True
        self._halt.set()
        self._handle(Asked(signum))

    def pass_on(self, signum: int) -> None:
        """Pass on a signal that the operator sends to the workers."""
        for worker in self._workers.values():
            worker.forward(signum)

    def trouble_elsewhere(self, why: str) -> None:
        """End the attempt because of another node: why, as in the alarm."""
        late = late_in(why)
        if self._supervisor.alive and not self._supervisor.stopping and why != "regroup":
            lost = set(self._nodes.lost) - set(self._spared)
            why_ended = lost_nodes(lost) if lost else "the job ends because of another node"
            if why_ended != self._said:
                self._said = why_ended
                self._context.say(why_ended)
        self._quiet = self._quiet or why == "regroup"
        self._halt.set()
        self._ask(late)
        self._handle(Elsewhere(why != FAILURE and not late, why == "interrupt", symptom=bool(late)))

    def missed(self, lost: tuple[int, ...]) -> None:
        """Note that these nodes are lost, all so far."""
        self._do(self._miss(lost))

    async def _miss(self, lost: tuple[int, ...]) -> None:
        config, nnodes = self._config, len(self._nodes.roster.members)
        elastic = not config.go_on and await self._takes_in()
        if self._supervisor.stopping or 0 in lost:
            stay = False  # node 0 is the head
        else:
            stay = stays(lost, nnodes, config.nnodes, elastic=elastic, go_on=config.go_on)
        if not stay:
            self.trouble_elsewhere("failure")
            return
        new = set(lost) - set(self._spared)
        self._spared = lost
        if new:
            self._context.say(f"{lost_nodes(new)}; the job goes on with {nnodes - len(lost)}")

    async def _takes_in(self) -> bool:
        """Whether the script can do without the lost nodes: a member lives on another one, or all is done."""
        live = self._here().live + (await self._nodes.others()).live
        script = await self._nodes.elastic()
        return script.takes_in and (script.over or not script.members.isdisjoint(live))

    def _handle(self, event: Event) -> None:
        actions = self._supervisor.handle(event, self._loop.time())
        logger.debug("%s → %s", event, actions or "nothing")
        for action in actions:
            match action:
                case Send(signum, local_ranks):
                    if signum == signal.SIGTERM and not self._quiet:
                        count = len(local_ranks)
                        self._context.say(f"{count} worker(s) here still run; they are asked to end")
                    ask_all([self._workers[local_rank] for local_rank in local_ranks], signum)
                case Wake(at):
                    self._loop.call_at(at, self._handle, Tick())
                case Over():
                    self._over.set()

    def _trouble(self, late: Collection[int] = ()) -> None:
        """Deal with the first trouble here that ends the attempt: take our turn among the nodes.

        Args:
            late: the ranks that others had waited for.
        """
        self._halt.set()
        if self._turn is None:
            self._turn = self._loop.create_task(self._tell_the_others(late))

    async def _tell_the_others(self, late: Collection[int]) -> int:
        turn = await self._nodes.take_turn()
        await (self._nodes.stop(self.signum) if self.signum else self._nodes.alarm(failure(late)))
        return turn

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done; `wait` waits for it, and raises what it raises."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            self._over.set()

    # -- one worker -----------------------------------------------------------------------------

    def _prefix_of(self, ranks: Sequence[int]) -> bytes:
        """The prefix of a line that several workers have written."""
        place = self._place
        local = ranges([rank - place.first_rank for rank in ranks])
        prefix = self._config.prefix_of(
            rank=f"ranks {ranges(ranks)}", local_rank=local, node_rank=place.node_rank, host=place.host
        )
        return hue(ranks[0], prefix, takes_colour(self._context.err.is_terminal, os.environ)).encode()

    def _start(self, local_rank: int, restarts: int) -> None:
        worker = start_worker(self._context, self._place, local_rank, restarts)
        self._workers[local_rank] = worker
        self._unswept.add(worker)
        self._began[local_rank] = self._loop.time()

    def _confirm(self, local_rank: int) -> None:
        self._workers[local_rank].confirm()
        self._workers[local_rank].watch(partial(self._ended, local_rank))

    def _ended(self, local_rank: int) -> None:
        """Deal with a worker that has ended; its code and its last words are there."""
        worker, place = self._workers[local_rank], self._place
        assert worker.code is not None
        ending = Ending(
            rank=place.first_rank + local_rank,
            local_rank=local_rank,
            node_rank=place.node_rank,
            host=place.host,
            pid=worker.pid,
            code=worker.code,
            at_ns=worker.ended_ns - self._began_ns,
            asked=worker.asked,
            symptom=by_its_words(worker.code, worker.asked) and worker.words.symptom(worker.code),
            error=worker.words.error,
            words=worker.words.excerpt() if worker.code != 0 or worker.words.error else (),
            doing=self._doing.get(place.first_rank + local_rank, ()),
            wall=time.time() - (time.monotonic_ns() - worker.ended_ns) / 1e9,
        )
        self._endings.append(ending)
        self._do(self._sweep(worker))
        mendable = self._config.max_restarts > 0 or self._config.go_on
        if ending.failed and mendable and not self._supervisor.stopping:
            self._handle(Away(local_rank))
            self._do(self._recover(worker, local_rank, ending))
        else:
            self._final(ending)
        self._say_workers()

    def _final(self, ending: Ending) -> None:
        """Record a worker that is not started again."""
        self._announce(ending, "")
        if ending.failed:
            self._trouble(ending.late)
            self._ask(ending.late)
        self._handle(Ended(ending.local_rank, ending.failed, ending.symptom))
        if ending.code == 0 and self._config.max_restarts and not self._supervisor.stopping:
            self._finished.append(ending.rank)
            if not self._telling:
                self._telling = True
                self._do(self._tell_the_workers())

    def _ask(self, late: Iterable[int]) -> None:
        """Ask workers that others waited for what they do, before they are stopped; each once."""
        for rank in late:
            local_rank = rank - self._place.first_rank
            if local_rank in self._supervisor.alive and rank not in self._doing:
                self._doing[rank] = ()
                self._do(self._note_doing(rank, self._workers[local_rank].pid))

    async def _note_doing(self, rank: int, pid: int) -> None:
        with suppress(OSError, ValueError):  # nothing of it is needed
            self._doing[rank] = await asyncio.to_thread(doing, pid)

    async def _tell_the_workers(self) -> None:
        """Tell the workers who has ended well: one that comes back shall not wait for those."""
        while self._finished and not (self._supervisor.over and self._nodes.store is None):
            ranks, self._finished = self._finished, []
            await self._nodes.say_finished(ranks)
        self._telling = False

    def _announce(self, ending: Ending, then: str) -> None:
        others = len(self._supervisor.alive) > (ending.local_rank in self._supervisor.alive)
        if ending.failed and (then or (self._turn is None and others)):
            because = ", because of another rank" if ending.symptom else ""
            self._context.say(f"rank {ending.rank} failed: {how_it_ended(ending)}{because}{then}")

    async def _sweep(self, worker: Worker) -> None:
        await worker.sweep()
        self._unswept.discard(worker)

    # -- a worker that may come back ------------------------------------------------------------

    async def _recover(self, worker: Worker, local_rank: int, ending: Ending) -> None:
        """Deal with a failure that need not end the attempt."""
        # Who fails at the same time is about to be seen: alone or all together makes a difference.
        await self._pause(_SYMPTOMS_APART if ending.symptom else FAILURE_GRACE)
        choice, used = await self._choose(worker, local_rank, ending)
        elsewhere = await self._nodes.others()
        if choice is Mend.RESTART:
            await self._nodes.forget_member(ending.rank)
        if not self._supervisor.may_return(local_rank):
            choice = Mend.END  # it ends anyhow, and perhaps this was the reason
        if choice is Mend.RESTART and self._return(local_rank, ending, used):
            return
        if choice is Mend.FORGIVE:
            self._mark(ending, replace(ending, forgiven=True))
            self._handle(Ended(local_rank, failed=False))
            goes_on = bool(elsewhere.live) or not self._supervisor.over
            self._announce(ending, "; the job goes on without it" if goes_on else "; all others have ended")
        else:
            self._final(ending)

    async def _choose(self, worker: Worker, local_rank: int, ending: Ending) -> tuple[Mend, int]:
        """Choose what to do → that, and how many restarts are used then; returns when it is time to do it.

        A worker comes back when what it had started is gone: ports, files and devices may be held by that.
        """
        nodes, limit = self._nodes, self._config.max_restarts
        used = await nodes.restarts()
        scene = await self._scene(ending)
        # Who died of the death that a restart mends comes back on that restart.
        free = (
            scene.others_live
            and scene.elastic
            and self._cover.covers(local_rank, symptom=ending.symptom, used=used)
        )
        choice = mend(replace(scene, may_restart=free or used < limit))
        logger.debug("rank %d: %s, %d restarts used of %d: %s", ending.rank, scene, used, limit, choice.name)
        if choice is not Mend.RESTART or not self._supervisor.may_return(local_rank):
            return choice, used
        if not free and (used := await nodes.take_restart()) > limit:  # another node took the last one
            return mend(replace(scene, may_restart=False)), limit
        used = min(used, limit)
        delay = self._backoff[local_rank].delay(self._loop.time() - self._began[local_rank])
        count = f"restart {used} of {limit}" if not free else f"restart {used} covers it"
        self._announce(ending, f"; {count}, into the running group{f', in {delay:g} s' if delay else ''}")
        if not delay and worker.gone:
            return choice, used
        await self._pause(delay)
        await worker.sweep()
        scene = await self._scene(ending)
        return mend(replace(scene, may_restart=True, outside=True)), used  # a member lived, and it did not

    async def _scene(self, ending: Ending) -> Scene:
        # Who lives, first: one that is started again meanwhile is then found to be no member, or not at all.
        here, others = self._here(), await self._nodes.others()
        script = await self._nodes.elastic() if self._config.max_restarts else Elastic(False, False)
        return Scene.of(
            ending.rank,
            elastic=script.takes_in,
            over=script.over,
            members=script.members,
            left=script.left,
            live=here.live + others.live,
            well=here.well or others.well,
            go_on=self._config.go_on,
        )

    def _here(self) -> Workers:
        """The workers of this node."""
        first = self._place.first_rank
        live = tuple(first + local_rank for local_rank in self._supervisor.alive)
        return Workers(live, any(ending.code == 0 for ending in self._endings))

    def _return(self, local_rank: int, ending: Ending, used: int) -> bool:
        """Start it again, if that can be done."""
        try:
            self._start(local_rank, used)
            self._confirm(local_rank)
        except UsageError as error:
            self._context.say(f"rank {ending.rank} cannot be started again: {error}")
            return False
        self._mark(ending, replace(ending, restarted=True))
        self._handle(Back(local_rank))
        self._say_workers()
        return True

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the attempt."""
        await happens(self._halt, seconds)

    def _mark(self, before: Ending, now: Ending) -> None:
        self._endings[self._endings.index(before)] = now

    def _say_workers(self) -> None:
        """Tell the other nodes which of our workers live."""
        if self._nodes.store is not None:
            self._do(self._nodes.say_workers(self._here()))

    def _look(self, stopped: Stopped) -> None:
        """Say who is stopped; only news."""
        if self._over.is_set():
            return
        first = self._place.first_rank
        living = {first + local: self._workers[local].pid for local in self._supervisor.alive}
        for line in stopped.news(living, [(rank, state_of(pid)) for rank, pid in living.items()]):
            self._context.say(line)
        self._loop.call_later(INTERVAL, self._look, stopped)

    # -- the end --------------------------------------------------------------------------------

    async def report(self) -> NodeReport:
        """This node's report on the attempt; call it when it is over here."""
        return self.report_at(await self._turn if self._turn is not None else NEVER)

    def report_at(self, turn: int) -> NodeReport:
        """The report of the workers, with this turn."""
        place, nodes = self._place, self._nodes
        return NodeReport(
            place.node_rank,
            place.host,
            tuple(self._endings),
            turn,
            self.signum,
            nodes.lost,
            spared=self._spared,
        )

    @property
    def spared(self) -> tuple[int, ...]:
        """Lost nodes that the job went on without."""
        return self._spared

    @property
    def in_trouble(self) -> bool:
        """Whether something ended the attempt from here."""
        return self._turn is not None

    async def kill_all(self) -> None:
        """End every worker, whatever way we leave."""
        self._halt.set()
        await cancel(*self._tasks)
        workers = list(self._unswept)
        for worker in workers:
            worker.watch(lambda: None)
            worker.send(signal.SIGKILL)
        await asyncio.gather(*(worker.sweep() for worker in workers))
        self._context.settle()
