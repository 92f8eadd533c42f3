"""The agent: one process per node that starts the workers, relays their output, and judges the end.

`run(config)` is what `aiodist run` calls. A job is one attempt or more; each is a `Crew`'s on every node.
What became of one is `judge`'s, what follows is the `Head`'s on node 0; this shell has the signals, the
consoles, and the way from one attempt to the next.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from aiodist.base.environment.process import signal_name
from aiodist.base.errors import UsageError, name_ranks
from aiodist.base.sanitize import one_line
from aiodist.base.terminal import takes_colour
from aiodist.launch.config import LaunchConfig
from aiodist.launch.crew import Crew
from aiodist.launch.dashboard_process import Dashboard
from aiodist.launch.nodes.admission import OverError
from aiodist.launch.nodes.meeting import meet
from aiodist.launch.nodes.messages import Next
from aiodist.launch.nodes.nodes import Listener, Nodes
from aiodist.launch.outcome import outcome_of
from aiodist.launch.remote.link import Link
from aiodist.launch.report import render, why_it_ended
from aiodist.launch.verdict import NodeReport, Verdict, judge, lost_nodes
from aiodist.launch.worker.logs import LogFiles
from aiodist.launch.worker.output import open_consoles, terminal_columns
from aiodist.launch.worker.spawner import Spawner
from aiodist.launch.worker.starting import AgentContext
from aiodist.net.tasks import cancel, settle
from aiodist.observe.ended import tell_end
from aiodist.observe.finding import has_ranks
from aiodist.observe.leaving import LOG_DIR, forget_dead, keep_dead, keep_outcome
from aiodist.observe.outcome import Outcome

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_OTHERS = 10.0  # seconds for other nodes to end, beyond their shutdown timeout
_LONGEST = 2000  # characters of a line to the operator
_LAST_FLUSH = 1.0  # seconds for a stuck console after the operator asked for the end
T = TypeVar("T")


def run(config: LaunchConfig, link: Link | None = None) -> int:
    """Run this node's part of the job; the exit code that the job deserves.

    Call it in the main thread of a process without other threads: it forks, and handles signals.

    Args:
        config: of this node.
        link: to the launcher that started this agent by ssh, and shows the verdict; None: nobody did.

    Raises:
        UsageError: the config cannot be carried out (nothing was started).
        RendezvousError: the nodes could not meet.
    """
    spawner = Spawner.start()
    try:
        return asyncio.run(Agent(config, spawner, link).run())
    finally:
        spawner.close()


class Agent:
    """One node's part of a job."""

    def __init__(self, config: LaunchConfig, spawner: Spawner, link: Link | None) -> None:
        self._config = config
        self._link = link
        self._spawner = spawner
        self._crew: Crew | None = None
        self._finished = False
        self._dashboard: Dashboard | None = None
        self._before: list[str] = []  # why earlier attempts have ended
        self._records = ""  # where ranks have written what they did last

    async def run(self) -> int:
        """Run the job → its exit code; the whole life of the agent."""
        self._loop = asyncio.get_running_loop()
        self._interrupt: asyncio.Future[int] = self._loop.create_future()
        self._late: asyncio.Queue[int] = asyncio.Queue()  # signals while none of our workers lives
        self._out, self._err = open_consoles(self._loop)
        self._context = AgentContext(self._config, self._spawner, self._out, self._err, self._say)
        self._catch_signals()
        if self._link is not None:
            task = asyncio.current_task()
            assert task is not None
            self._link.open(self._loop, task.cancel, self._config.meet_timeout)
        try:
            nodes = await self._unless_interrupted(meet(self._config, os.environ, self._say, self._link))
        except OverError as over:
            self._say("the job has ended, and did not need this node")
            return await self._leave(over.code)
        if nodes is None:
            signum = self._interrupt.result()
            self._say(f"stopped by {signal_name(signum)} before the job began")
            return await self._leave(128 + signum)
        if self._link is not None:
            self._link.began()
        if self._config.torch and nodes.head is not None:
            self._say("where a program asks torch for gloo, its groups are aiodist's (--torch)")
        try:
            verdict = await self._run_job(nodes)
            if nodes.head is not None:
                nodes.head.code = verdict.code
            outcome = await self._keep_outcome(nodes, verdict)
            if self._dashboard is not None:
                await self._dashboard.over(verdict.code, self._records, outcome)
        except asyncio.CancelledError:  # it leaves: the others shall miss it at once, so nothing is said
            if self._crew is not None:
                await self._crew.kill_all()
            raise
        except BaseException:
            await self._end(nodes)
            raise
        await self._end(nodes)
        return await self._show(verdict, nodes.place.nnodes)

    async def _end(self, nodes: Nodes) -> None:
        if self._crew is not None:
            await self._crew.kill_all()
        await nodes.aclose()

    async def _run_job(self, nodes: Nodes) -> Verdict:
        """Run attempt after attempt → the verdict on the last."""
        while True:
            verdict = await self._attempt(nodes)
            following = await self._next(nodes, verdict)
            if following.roster is None:
                return self._amended(verdict, following)
            await self._keep_outcome(nodes, verdict, again=True)
            await nodes.enter(following.roster)
            self._say_again(verdict, nodes)

    async def _attempt(self, nodes: Nodes) -> Verdict:
        crew = self._crew = Crew(self._context, nodes)
        try:
            if self._config.wants_files and self._context.logs is None:
                began = self._context.began
                self._context.logs = LogFiles(self._config, nodes.place.job, nodes.place.run, began)
                self._say(f"logs are in {self._context.logs.folder}")
            if self._config.dashboard and self._dashboard is None and nodes.head is not None:
                logs = self._context.logs.folder if self._context.logs is not None else ""
                self._dashboard = Dashboard(
                    *(self._say, nodes.place.run, nodes.place.secret, logs), terminal=self._err.is_terminal
                )
            crew.start()
        except UsageError as error:
            await self._give_up(nodes, crew, error)
            raise
        await nodes.watch(Listener(crew.trouble_elsewhere, crew.missed))
        if nodes.head is not None:
            nodes.head.attend(nodes)
        if self._interrupt.done():  # in the same moment as the last node arrived, or between two attempts
            crew.asked(self._interrupt.result())
        await crew.wait()
        if nodes.head is not None:
            nodes.head.over()
        verdict = judge(await self._all_reports(nodes, crew), len(nodes.roster.members))
        if verdict.code and not verdict.signum:
            await self._keep_records(nodes)
        forget_dead(nodes.place.run)
        return verdict

    async def _keep_records(self, nodes: Nodes) -> None:
        """Write down what the ranks did last that have died here; say where that is, and what others have
        written themselves."""
        folder = self._context.records(nodes.place.job, nodes.place.run)
        if folder is None:
            return
        await keep_dead(nodes.place.run, {LOG_DIR: str(folder)})
        if await asyncio.to_thread(has_ranks, folder):
            self._records = str(folder)
            self._say(f"what the ranks did last: aiodist explain {shlex.quote(str(folder))}")

    async def _keep_outcome(self, nodes: Nodes, verdict: Verdict, *, again: bool = False) -> Outcome | None:
        """Write down how the job has ended, for who asks later → that; None: nothing has failed."""
        place, config, now = nodes.place, self._config, time.time()
        outcome = outcome_of(
            *(verdict, place.run, config.command, place.nnodes, now), before=self._before, again=again
        )
        folder = self._context.records(place.job, place.run)
        if folder is not None:
            asked_for = bool(verdict.code) and config.log_dir is not None and not again
            written = await asyncio.to_thread(keep_outcome, outcome, folder, os.environ, make=asked_for)
            outcome = outcome.at(str(folder)) if outcome is not None and written else outcome
        if outcome is not None and outcome.code and not again:
            with suppress(OSError):
                tell_end(outcome)
        return outcome

    async def _show(self, verdict: Verdict, nnodes: int) -> int:
        self._finished = True
        colour = takes_colour(self._err.is_terminal, os.environ)
        shown = render(verdict, nnodes=nnodes, colour=colour, width=min(100, terminal_columns()))
        for line in shown.splitlines() if self._link is None else ():
            self._err.line(b"", line.encode())
        return await self._leave(verdict.code, shown, _LAST_FLUSH if verdict.signum else None)

    async def _leave(self, code: int, verdict: str = "", patience: float | None = _LAST_FLUSH) -> int:
        """Write what is left, tell the launcher, if there is one, and return the code."""
        await self._out.flush(patience)
        await self._err.flush(patience)
        if self._link is not None:
            self._link.over(code, verdict)
        return code

    # -- signals --------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        for signum in self._config.signals:
            if signal.getsignal(signum) is signal.SIG_IGN:
                continue  # by nohup, or in a background job of sh: it was said that this shall not end us
            self._loop.add_signal_handler(signum, self._asked, signum)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})  # whoever started us may have blocked it
        for signum in _PASSED_ON:
            if signum not in self._config.signals:
                self._loop.add_signal_handler(signum, self._pass_on, signum)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})

    def _pass_on(self, signum: int) -> None:
        if self._crew is not None:
            self._crew.pass_on(signum)

    def _asked(self, signum: int) -> None:
        if self._finished:  # only a stuck console keeps us
            self._out.drop()
            self._err.drop()
            return
        settle(self._interrupt, signum)
        crew = self._crew
        if crew is None:
            return  # `meet` is given up
        if crew.over:
            self._late.put_nowait(signum)
        else:
            self._say(f"got {signal_name(signum)}; {crew.alive} worker(s) here are asked to end")
            crew.asked(signum)

    async def _unless_interrupted(self, meeting: Coroutine[Any, Any, Nodes]) -> Nodes | None:
        """Meet the other nodes; None: the operator sent a signal before the workers were started."""
        task = self._loop.create_task(meeting)
        either: set[asyncio.Future[Any]] = {task, self._interrupt}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        await cancel(task)
        return None

    # -- the end of an attempt ------------------------------------------------------------------

    async def _give_up(self, nodes: Nodes, crew: Crew, error: UsageError) -> None:
        """End an attempt whose workers cannot start: tell the other nodes, wait until theirs have ended."""
        await crew.kill_all()
        report = replace(crew.report_at(await nodes.take_turn()), error=str(error))
        await nodes.publish(report)
        await nodes.alarm()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.shutdown_timeout + _OTHERS):
                verdict = judge(await nodes.reports(report), len(nodes.roster.members))
                await nodes.next(verdict)

    async def _all_reports(self, nodes: Nodes, crew: Crew) -> list[NodeReport]:
        """Ours, and the other nodes' when they are over; a signal meanwhile ends them, or the wait."""
        report = await crew.report()
        await nodes.publish(report)
        waiting = self._loop.create_task(nodes.reports(report))
        while (signum := await self._late_signal(waiting)) is not None:
            if crew.signum or crew.in_trouble:
                await cancel(waiting)  # asked before
                return [replace(report, lost=nodes.lost, spared=crew.spared)]
            crew.signum = signum
            report = crew.report_at(await nodes.take_turn())
            await nodes.publish(report)
            await nodes.stop(signum)
        return [replace(report, lost=nodes.lost, spared=crew.spared), *waiting.result()[1:]]

    async def _next(self, nodes: Nodes, verdict: Verdict) -> Next:
        """Learn what follows; a signal meanwhile ends the job, a second one at once."""
        waiting = self._loop.create_task(nodes.next(verdict))
        asked = 0
        while (signum := await self._late_signal(waiting)) is not None:
            if asked:
                await cancel(waiting)
                return Next(signum=asked, used=await nodes.restarts())
            asked = signum
            self._say(f"got {signal_name(signum)}; the job is not started again")
            await nodes.stop(signum)
        return waiting.result()

    async def _late_signal(self, task: asyncio.Task[Any]) -> int | None:
        """The next signal of the operator; None: the task is done before that."""
        late = asyncio.ensure_future(self._late.get())
        either: set[asyncio.Future[Any]] = {task, late}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            late.cancel()
        return late.result() if late.done() and not late.cancelled() and not task.done() else None

    def _amended(self, verdict: Verdict, following: Next) -> Verdict:
        """The last attempt's verdict, and what the head says about it."""
        limit = self._config.max_restarts
        verdict = replace(verdict, restarts=min(following.used, limit), limit=limit)
        if following.signum:
            return replace(verdict, code=128 + following.signum, signum=following.signum)
        if following.error:
            return replace(verdict, code=verdict.code or 1, error=following.error)
        return verdict

    def _say_again(self, verdict: Verdict, nodes: Nodes) -> None:
        """Say that the next attempt begins, and why."""
        roster, culprit = nodes.roster, verdict.culprit
        if not verdict.code:
            why, which = "", "all workers"
        else:
            missed = set(verdict.lost) - set(verdict.spared)
            why = f"{lost_nodes(missed)}; " if missed else ""
            if culprit is not None:
                why = f"{why_it_ended(culprit)}; "
            which = f"restart {roster.restarts} of {self._config.max_restarts}: all workers"
        on = f" on {len(roster.members)} nodes" if self._config.most > 1 else ""
        line = f"{why}{which} begin again, {nodes.place.world_size}{on}"
        self._before.append(line)
        self._say(line)
        well = sorted({ending.rank for ending in verdict.endings if ending.code == 0 and not ending.asked})
        if well:
            begin = "begins" if len(well) == 1 else "begin"
            who = f"{name_ranks(well)} had ended well, and {begin} again, too"
            self._say(f"{who}: an attempt counts as a whole")

    def _say(self, text: str) -> None:
        """Show one line. Names and errors in it may be of other nodes."""
        who = "aiodist run" if self._link is None else f"aiodist launch: {self._config.host}"
        self._err.line(b"", f"{who}: {one_line(text, _LONGEST)}".encode())
