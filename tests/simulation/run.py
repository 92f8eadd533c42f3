"""One run: a plan carried out in virtual time, and what is wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.control.overlay import FULL_MESH
from aiodist.group.epochs.regroup import regroup_of
from aiodist.net.turn import Turn
from aiodist.testing import SimulationStuck, VirtualLoop, run_cluster
from tests.simulation.ledger import Ledger
from tests.simulation.plan import Fault, Plan
from tests.simulation.program import Program
from tests.support.chaos import STORE, Chaos, Crashed, Process

LIMIT = 600.0  # virtual seconds; nothing that is bounded takes so long


@dataclass
class Outcome:
    """What came of a run."""

    plan: Plan
    ledger: Ledger
    faults: dict[str, int] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    seconds: float = 0.0


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """Nothing in a run depends on the real clock: awaits do not yield because of it."""
    overdue = Turn.overdue
    Turn.overdue = lambda self, limit: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        Turn.overdue = overdue  # type: ignore[method-assign]


def simulate(plan: Plan) -> Outcome:
    """Carry a plan out."""
    outcome = Outcome(plan, Ledger())
    loop = VirtualLoop()
    swallowed: list[str] = []
    loop.set_exception_handler(lambda _, context: swallowed.append(_words(context)))
    try:
        with steady(), warnings.catch_warnings():
            warnings.simplefilter("error")
            asyncio.set_event_loop(None)
            try:
                loop.run_until_complete(_bounded(outcome))
            except (SimulationStuck, TimeoutError) as error:
                outcome.ledger.wrong(f"hang: {type(error).__name__} at {loop.time():.3f}")
                _list_tasks(outcome, loop)
            outcome.seconds = loop.time()
    finally:
        _clear(loop)
    for words in swallowed:
        outcome.ledger.wrong(f"the loop swallowed: {words}")
    return outcome


async def _bounded(outcome: Outcome) -> None:
    loop = asyncio.get_running_loop()
    timer = loop.call_at(LIMIT - 1, _list_tasks, outcome, loop)
    async with asyncio.timeout(LIMIT):
        await _run(outcome)
    timer.cancel()


def _list_tasks(outcome: Outcome, loop: asyncio.AbstractEventLoop) -> None:
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        outcome.ledger.lines.append(f"    {task.get_name()}: {_stack(task)}")


async def _run(outcome: Outcome) -> None:
    plan, ledger = outcome.plan, outcome.ledger
    chaos = Chaos(plan.seed, latency=plan.latency, hosted=plan.hosted, hosts=plan.hosts)
    programs: dict[int, Program] = {}
    loop = asyncio.get_running_loop()

    def program(process: Process) -> Program:
        return programs.setdefault(process.number, Program(plan, ledger, process))

    async def main(group: ProcessGroup) -> str:
        regroup = regroup_of(group)
        assert regroup is not None
        process = next(p for p in chaos.processes if p.job is regroup.job)
        return await program(process).run(group)

    def happen(fault: Fault) -> None:
        ledger.note(loop.time(), "*", f"{fault.kind} {fault.who} {fault.others} {fault.number:g}")
        _happen(chaos, fault, main)

    timers = [loop.call_at(fault.at, happen, fault) for fault in plan.faults]
    results = await run_cluster(plan.size, main, timeout=8.0, return_exceptions=True, processes=chaos)
    for timer in timers:
        timer.cancel()
    outcome.faults = chaos.faults
    outcome.steps = [process.steps for process in chaos.processes]
    ends: list[Any] = [*results, *(await asyncio.gather(*chaos.joined, return_exceptions=True))]
    first = chaos.processes[: plan.size]
    whole = all(process.dead or process.number in programs for process in first)
    whole = whole and len(chaos.processes) <= FULL_MESH
    for process, end in zip(chaos.processes, ends, strict=True):
        if process.dead:
            end = Crashed("crashed")
        _judge(outcome, process, programs.get(process.number), end, whole)
    ledger.check_agreements(chaos.alive() if plan.calm else ())
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    outer = [task for task in left if "_bounded" not in repr(task.get_coro())]
    if outer:
        ledger.wrong(f"{len(outer)} tasks left: " + "; ".join(_stack(task) for task in outer[:3]))
    for process in chaos.processes:
        opened = [place for place, endpoint in process.endpoints if not endpoint.closed]
        if opened:
            ledger.wrong(f"process {process.number} left endpoints open: {opened}")


def _happen(chaos: Chaos, fault: Fault, main: Any) -> None:
    count = len(chaos.processes)
    who = sorted({number % count for number in fault.who})
    match fault.kind:
        case "crash":
            chaos.crash(who[0])
        case "silent crash":
            chaos.crash(who[0], silent=True)
        case "crash at a step":
            chaos.crash_at_step(who[0], chaos.processes[who[0]].steps + int(fault.number))
        case "join":
            chaos.join(main, fault.number)
        case "join and crash":
            chaos.crash_at_step(chaos.join(main, 10.0).number, int(fault.number))
        case "slow network":
            chaos.slow(fault.number, fault.number * 2, who)
        case "store outage":
            chaos.stop_store(fault.number)
        case "partition" | "one-way partition":
            others = set(fault.others)
            if others != {STORE}:  # newcomers are on the other side
                others |= set(range(len(chaos.processes)))
            chaos.cut(who, others - set(who), fault.number, one_way=fault.kind != "partition")


def _judge(outcome: Outcome, process: Process, program: Program | None, end: Any, whole: bool) -> None:
    """How a process ended: well, or by an error that fits what happened.

    Args:
        whole: everybody who lived took part in the first epoch, and all are linked with all, so that nobody
            is cut off by the end of those between.
    """
    plan, ledger = outcome.plan, outcome.ledger
    words = end if isinstance(end, str) else f"{type(end).__name__}: {end}"
    ledger.ends[process.number] = words
    ledger.note(outcome.seconds, process.number, f"ended: {words}")
    if process.dead or isinstance(end, str | Crashed):
        return
    if not isinstance(end, dist.AiodistError):
        ledger.wrong(f"process {process.number} ended by {words}")
        for note in _trace(end):
            ledger.lines.append(note)
        return
    begun = program is not None
    excluded = process.uid in ledger.excluded
    lived = "though it lived and nothing stood between"
    if begun and not isinstance(end, dist.Evicted | dist.QuorumLost):
        ledger.wrong(f"process {process.number} ended by {words}")
    elif isinstance(end, dist.UsageError | dist.GroupClosed | dist.WireError):
        ledger.wrong(f"process {process.number} could not begin: {words}")
    elif isinstance(end, dist.Evicted) and plan.calm and not excluded:
        ledger.wrong(f"process {process.number} was evicted {lived}: {words}")
    elif isinstance(end, dist.QuorumLost) and plan.calm and (not plan.hosted or (plan.provable and whole)):
        by_size = plan.min_size > 1 or "asked for" in words
        ledger.violations += [] if by_size else [f"process {process.number} lost its quorum {lived}: {words}"]


def _trace(error: BaseException) -> list[str]:
    import traceback

    return traceback.format_exception(error)


def _words(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {error!r}"


def _stack(task: asyncio.Task[Any]) -> str:
    names = []
    coro: Any = task.get_coro()
    while coro is not None:
        frame = getattr(coro, "cr_frame", None)
        if frame is not None:
            names.append(f"{coro.__qualname__}:{frame.f_lineno}")
        coro = getattr(coro, "cr_await", None)
    return " > ".join(names)


def _clear(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        with contextlib.suppress(SimulationStuck):
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
    gc.collect(0)
