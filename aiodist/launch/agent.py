"""The agent: one process per node that starts the workers, relays their output, and judges the end.

`run(plan)` is what `aiodist run` calls. The decisions are `Supervisor`'s (when to stop) and `judge`'s
(who failed first); this shell owns processes, signals, timers and descriptors.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aiodist.errors import UsageError
from aiodist.launch.guardian import Guardian, die_with_parent
from aiodist.launch.lines import LastWords
from aiodist.launch.logs import LogFiles
from aiodist.launch.meeting import meet
from aiodist.launch.nodes import Nodes
from aiodist.launch.output import Relay, open_consoles
from aiodist.launch.plan import Plan, Seat, worker_environment
from aiodist.launch.report import how_it_ended, render
from aiodist.launch.supervisor import (
    Action,
    Asked,
    Elsewhere,
    Ended,
    Event,
    Over,
    Send,
    Supervisor,
    Tick,
    Wake,
)
from aiodist.launch.verdict import NEVER, Ending, NodeReport, judge, signal_name
from aiodist.launch.worker import Worker, spawn

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_SWEEP_GRACE = 2.0  # seconds, at most, for what a worker left behind
_OTHERS = 10.0  # seconds for other nodes to end, beyond their shutdown timeout
_LAST_FLUSH = 1.0  # seconds for a stuck console after the operator asked for the end


def run(plan: Plan) -> int:
    """Run this node's part of the job; the exit code that the job deserves.

    Call it in the main thread of a process without other threads: it forks, and handles signals.

    Raises:
        UsageError: the plan cannot be carried out (nothing was started).
        RendezvousError: the nodes could not meet.
    """
    guardian = Guardian.start()
    try:
        return asyncio.run(Agent(plan, guardian).run())
    finally:
        guardian.close()


class InterruptedEarlyError(Exception):
    """The operator sent a signal before the workers were started."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal_name(signum))
        self.signum = signum


class Agent:
    """The shell around `Supervisor` for one node."""

    def __init__(self, plan: Plan, guardian: Guardian) -> None:
        self._plan = plan
        self._guardian = guardian
        self._tie = die_with_parent()
        self._supervisor = Supervisor(plan.nproc, plan.shutdown_timeout)
        self._sweep_grace = min(_SWEEP_GRACE, plan.shutdown_timeout)
        self._workers: list[Worker] = []
        self._endings: list[Ending] = []
        self._sweeps: list[asyncio.Task[None]] = []
        self._began_ns = 0
        self._signum = 0  # the operator's signal, where it came before any failure
        self._turn: asyncio.Task[int] | None = None
        self._finished = False

    async def run(self) -> int:
        """The whole life of the agent."""
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._interrupt: asyncio.Future[int] = self._loop.create_future()
        self._late: asyncio.Queue[int] = asyncio.Queue()  # signals after our workers have ended
        self._out, self._err = open_consoles(self._loop)
        self._catch_signals()
        try:
            self._nodes = await self._unless_interrupted(meet(self._plan, os.environ, self._say))
        except InterruptedEarlyError as interrupted:
            self._say(f"stopped by {interrupted} before the job began")
            await self._err.flush(_LAST_FLUSH)
            return 128 + interrupted.signum
        try:
            return await self._run_workers(self._nodes)
        finally:
            await self._kill_all()
            await self._nodes.aclose()

    async def _run_workers(self, nodes: Nodes) -> int:
        seat = nodes.seat
        try:
            self._start_workers(seat)
        except UsageError as error:
            await self._give_up(error)
            raise
        nodes.watch(self._trouble_elsewhere)
        if self._interrupt.done():  # in the same moment as the last node arrived
            self._asked(self._interrupt.result())
        await self._over.wait()
        await asyncio.gather(*self._sweeps)
        verdict = judge(await self._all_reports(), seat.nnodes)
        self._finished = True
        colour = self._err.is_terminal and not os.environ.get("NO_COLOR")
        for line in render(verdict, nnodes=seat.nnodes, colour=colour, width=_columns()).splitlines():
            self._err.line(b"", line.encode())
        patience = _LAST_FLUSH if verdict.signum else None
        await self._out.flush(patience)
        await self._err.flush(patience)
        return verdict.code

    # -- signals and decisions ------------------------------------------------------------------

    def _catch_signals(self) -> None:
        for signum in self._plan.signals:
            if signum == signal.SIGHUP and signal.getsignal(signum) is signal.SIG_IGN:
                continue  # started by nohup
            self._loop.add_signal_handler(signum, self._asked, signum)
        for signum in _PASSED_ON:
            if signum not in self._plan.signals:
                self._loop.add_signal_handler(signum, self._pass_on, signum)
        if not hasattr(os, "pidfd_open"):
            self._loop.add_signal_handler(signal.SIGCHLD, self._poll_workers)

    def _pass_on(self, signum: int) -> None:
        for worker in self._workers:
            worker.forward(signum)

    def _asked(self, signum: int) -> None:
        if self._finished:  # only a stuck console keeps us
            self._out.drop()
            self._err.drop()
            return
        if not self._interrupt.done():
            self._interrupt.set_result(signum)
        alive = len(self._supervisor.alive)
        if not alive:
            self._late.put_nowait(signum)
        elif self._workers:
            if self._turn is None:
                self._signum = signum
                self._trouble()
            self._say(f"got {signal_name(signum)}; {alive} worker(s) here are asked to end")
            self._handle(Asked(signum))

    def _handle(self, event: Event) -> None:
        self._act(self._supervisor.handle(event, self._loop.time()))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(signum, local_ranks):
                    if signum == signal.SIGTERM and not self._interrupt.done():
                        self._say(f"{len(local_ranks)} worker(s) here still run; they are asked to end")
                    for local_rank in local_ranks:
                        self._workers[local_rank].send(signum)
                case Wake(at):
                    self._loop.call_at(at, self._handle, Tick())
                case Over():
                    self._over.set()

    def _trouble_elsewhere(self, stopped: bool) -> None:
        if self._supervisor.alive and not self._supervisor.stopping:
            lost = ", ".join(map(str, self._nodes.lost))
            self._say(f"node {lost} is lost" if lost else "the job ends because of another node")
        self._handle(Elsewhere(stopped))

    def _trouble(self) -> None:
        """The first trouble on this node: take our turn among the nodes."""
        if self._turn is None:
            self._turn = self._loop.create_task(self._tell_the_others())

    async def _tell_the_others(self) -> int:
        turn = await self._nodes.take_turn()
        await self._nodes.alarm(stop=self._signum != 0)
        return turn

    # -- workers --------------------------------------------------------------------------------

    def _start_workers(self, seat: Seat) -> None:
        plan = self._plan
        logs = LogFiles(plan, seat.job) if plan.wants_files else None
        if logs is not None:
            self._say(f"logs are in {logs.folder}")
        self._began_ns = time.monotonic_ns()
        for local_rank in range(plan.nproc):
            env = worker_environment(os.environ, plan, seat, local_rank)
            if logs is not None:
                env["TORCHELASTIC_ERROR_FILE"] = logs.path(local_rank, "error.json")
            first = local_rank == 0 and seat.node_rank == 0
            worker = spawn(
                plan.command,
                env,
                stdin=0 if first and _stdin_is_for_workers() else None,
                guardian=self._guardian,
                tie=self._tie,
                make_relays=partial(self._relays, seat, local_rank, logs),
            )
            self._workers.append(worker)
        for local_rank, worker in enumerate(self._workers):
            worker.watch(self._loop, partial(self._ended, local_rank))

    def _relays(
        self, seat: Seat, local_rank: int, logs: LogFiles | None, out: int, err: int, words: LastWords
    ) -> list[Relay]:
        plan, rank = self._plan, seat.first_rank + local_rank
        prefix = plan.prefix_of(rank=rank, local_rank=local_rank, node_rank=seat.node_rank, host=seat.host)
        relays = []
        for fd, bit, console, name in ((out, 1, self._out, "stdout.log"), (err, 2, self._err, "stderr.log")):
            painted = prefix
            if console.is_terminal and not os.environ.get("NO_COLOR"):
                painted = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
            relays.append(
                Relay(
                    self._loop,
                    fd,
                    console=console if plan.on_console(local_rank, bit) else None,
                    prefix=painted.encode(),
                    prefix_width=len(prefix),
                    file=logs.open(local_rank, name) if logs and plan.filed(local_rank, bit) else None,
                    words=words if bit == 2 else None,
                )
            )
        return relays

    def _poll_workers(self) -> None:
        for local_rank, worker in enumerate(self._workers):
            if worker.poll():
                self._ended(local_rank)

    def _ended(self, local_rank: int) -> None:
        """A worker has ended; its code and its last words are there."""
        worker, seat = self._workers[local_rank], self._nodes.seat
        assert worker.code is not None
        ending = Ending(
            rank=seat.first_rank + local_rank,
            local_rank=local_rank,
            node_rank=seat.node_rank,
            host=seat.host,
            pid=worker.pid,
            code=worker.code,
            at_ns=worker.ended_ns - self._began_ns,
            asked=worker.asked,
            symptom=worker.code != 0 and worker.words.symptom,
            error=worker.words.error if worker.code != 0 else "",
            words=worker.words.excerpt() if worker.code != 0 else (),
        )
        if ending.failed and self._turn is None and len(self._supervisor.alive) > 1:
            because = ", because of another rank" if ending.symptom else ""
            self._say(f"rank {ending.rank} failed: {how_it_ended(ending)}{because}")
        self._endings.append(ending)
        self._sweeps.append(self._loop.create_task(worker.sweep(self._sweep_grace)))
        if ending.failed:
            self._trouble()
        self._handle(Ended(local_rank, ending.failed, ending.symptom))

    async def _kill_all(self) -> None:
        """Whatever way we leave: nobody stays."""
        for worker in self._workers:
            if worker.code is None:
                worker.send(signal.SIGKILL)
        # Not by pidfd, which is not everywhere; SIGKILL is quick.
        while any(worker.code is None and not worker.poll() for worker in self._workers):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if len(self._sweeps) < len(self._workers):  # only after an error on the way
            await asyncio.gather(*(worker.sweep(self._sweep_grace) for worker in self._workers))

    # -- the end --------------------------------------------------------------------------------

    def _report(self, turn: int) -> NodeReport:
        seat = self._nodes.seat
        endings = tuple(self._endings)
        return NodeReport(seat.node_rank, seat.host, endings, turn, self._signum, self._nodes.lost)

    async def _give_up(self, error: UsageError) -> None:
        """Our workers cannot be started: tell the other nodes, and wait until theirs have ended."""
        await self._kill_all()
        nodes = self._nodes
        report = replace(self._report(await nodes.take_turn()), error=str(error))
        await nodes.publish(report)
        await nodes.alarm()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._plan.shutdown_timeout + _OTHERS):
                await nodes.reports(report)

    async def _all_reports(self) -> list[NodeReport]:
        """Ours, and the other nodes' when they are over; a signal meanwhile ends them, or the wait."""
        nodes = self._nodes
        report = self._report(await self._turn if self._turn is not None else NEVER)
        await nodes.publish(report)
        waiting = self._loop.create_task(nodes.reports(report))
        try:
            while not waiting.done():
                late = asyncio.ensure_future(self._late.get())
                either: set[asyncio.Future[Any]] = {waiting, late}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not late.cancel() and not waiting.done():
                    if self._signum or self._turn is not None:
                        break  # asked before
                    self._signum = late.result()
                    report = self._report(await nodes.take_turn())
                    await nodes.publish(report)
                    await nodes.alarm(stop=True)
            others = waiting.result()[1:] if waiting.done() else []
        finally:
            waiting.cancel()
        return [replace(report, lost=nodes.lost), *others]

    async def _unless_interrupted(self, meeting: Coroutine[Any, Any, Nodes]) -> Nodes:
        task = self._loop.create_task(meeting)
        either: set[asyncio.Future[Any]] = {task, self._interrupt}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise InterruptedEarlyError(self._interrupt.result())

    def _say(self, text: str) -> None:
        self._err.line(b"", f"aiodist run: {text}".encode())


def _stdin_is_for_workers() -> bool:
    """A file or a pipe goes to rank 0, as under mpirun; a terminal stays with the agent."""
    try:
        return sys.stdin is not None and not os.isatty(0)
    except OSError:
        return False


def _columns() -> int:
    try:
        return min(100, os.get_terminal_size(2).columns or 80)
    except OSError:
        return 80
