"""The processes of a test's ranks: started, watched, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from aiodist.base.environment import tls
from aiodist.rendezvous import StoreServer
from aiodist.testing.forkserver import SERVERS, Forked, ForkRequest, servers
from aiodist.testing.hosts import entering
from aiodist.testing.outcome import RankOutcome, RanksFailed, put_in_order
from aiodist.testing.report import Report
from aiodist.testing.terminal import Terminal

WORKER = ("-m", "aiodist.testing.worker")
LIMIT = 1 << 20  # bytes of a line of a rank's output that are taken at once

Process = Forked | asyncio.subprocess.Process
Say = Callable[[int, str], object]
"""Called with a rank and a line that it has printed."""


async def launch(
    arguments: list[str],
    size: int,
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    places: Sequence[str] = (),
    folder: Path | None = None,
    say: Say | None = None,
    terminal: Terminal | None = None,
    broken_off: Callable[[list[str]], object] | None = None,
) -> list[RankOutcome]:
    """Run `python *arguments` once a rank and return how each ended.

    The ranks of a test are forked from a server, other programs are started anew.

    Args:
        arguments: of the Python interpreter.
        size: number of ranks.
        timeout: seconds; then the ranks are asked what they do, and killed.
        env: further environment variables.
        places: by rank, its network namespace, as a path; (): this process's.
        folder: to which ranks report; None: they do not.
        say: told of each line that a rank prints, as it comes.
        terminal: by which ranks are debugged.
        broken_off: told what the ranks do, as lines, when this is cancelled: by Ctrl-C, say, or by a limit of
            somebody else's.

    Raises:
        RanksFailed: there was no end within the time.
    """
    secret = secrets.token_hex(32)
    with _unlogged():
        key = tls({**os.environ, **(env or {})})
        server = await StoreServer.start("127.0.0.1", 0, job="spmd", secret=secret.encode(), tls=key)
    begun = any(name.startswith(("PYTHON", "LD_")) for name in env or {})  # read as the interpreter starts
    forks = not begun and tuple(arguments[:2]) == WORKER and sys.platform == "linux"
    processes: list[Process] = []
    ended: list[int] = []

    async def watch(rank: int, process: Process, output: asyncio.StreamReader) -> RankOutcome:
        words = await _lines(rank, output, say)
        code = await process.wait()
        ended.append(rank)
        report = None if folder is None else Report.read(folder, rank)
        return RankOutcome(rank, code, words, len(ended), report)

    async def start(rank: int, output: int) -> Process:
        variables = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(server.port),
            "AIODIST_STORE": f"127.0.0.1:{server.port}",
            "AIODIST_JOB": "spmd",
            "AIODIST_SECRET": secret,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            **(env or {}),
        }
        if forks:
            network = places[rank] if places else ""
            request = ForkRequest(
                "aiodist.testing.worker:main", arguments[2:], variables, os.getcwd(), network
            )
            return Forked(servers()[rank % SERVERS], request, output)
        return await asyncio.create_subprocess_exec(
            *(entering(places[rank]) if places else ()),
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=variables,
        )

    outputs: list[tuple[asyncio.StreamReader, asyncio.ReadTransport]] = []
    watches: list[asyncio.Task[RankOutcome]] = []
    try:
        if terminal is not None:
            await terminal.start()
        for rank in range(size):
            ours, theirs = os.pipe()
            with os.fdopen(theirs, "wb", 0):
                outputs.append(await _reading(ours))
                processes.append(await start(rank, theirs))
            watches.append(asyncio.create_task(watch(rank, processes[rank], outputs[rank][0])))
        late = await _in_time(watches, timeout, terminal)
        doing: list[str] = []
        if late:
            cause, doing = await _ask(processes)
            await asyncio.wait(watches, timeout=0.2 if doing else 3.0)  # for their output
            for process, watching in zip(processes, watches, strict=True):
                if not watching.done():  # a rank may be over, and a process that it started hold its output
                    _signal_group(process, signal.SIGKILL)
        outcomes = await asyncio.gather(*watches)
        put_in_order(outcomes)
        if late:
            raise _hung(timeout, cause, doing, outcomes)
        return outcomes
    except asyncio.CancelledError:
        if broken_off is not None and len(watches) == size:
            broken_off(await _doing_now(processes, watches))
        raise
    finally:
        _signal(processes, signal.SIGKILL)
        for watching in watches:
            watching.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for _, transport in outputs:
            transport.close()
        for process in processes:
            await process.wait()
        if terminal is not None:
            await terminal.close()
        await server.aclose()


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep from a test's log what it has not done itself."""
    logger = logging.getLogger("aiodist.store")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


async def _in_time(
    watches: list[asyncio.Task[RankOutcome]], timeout: float, terminal: Terminal | None
) -> bool:
    """Wait for the ends → whether some are late. While a rank is debugged, and as long after it, none is."""
    left = timeout
    while True:
        _, late = await asyncio.wait(watches, timeout=left)
        left = 0.0
        if late and terminal is not None:
            left = timeout - terminal.free_for
        if not late or left <= 0:
            return bool(late)
        left = max(left, 0.1)


async def _ask(processes: list[Process]) -> tuple[list[str], list[str]]:
    """What the ranks do: who is the cause, and all of it, as lines.

    Those that are not known yet print their stacks.
    """
    from aiodist.testing.stuck import described, seen, why

    pids = {process.pid: rank for rank, process in enumerate(processes) if process.returncode is None}
    views = await asyncio.to_thread(seen, pids)
    known = {view.recording.pid for view in views}
    _signal([one for one in processes if one.pid not in known], signal.SIGUSR1)  # faulthandler prints all
    return why(views), described(views) if len(known) == len(pids) else []


async def _doing_now(processes: list[Process], watches: list[asyncio.Task[RankOutcome]]) -> list[str]:
    """The tasks of the ranks, as lines; of those that do not tell them, what they have printed."""
    cause, doing = await _ask(processes)
    if not doing:
        await asyncio.wait(watches, timeout=3.0)
        _signal(processes, signal.SIGKILL)
        outcomes = await asyncio.gather(*watches)
        doing = [line for one in outcomes for line in (f"── rank {one.rank} ──", one.output)]
    return [*cause, "", *doing]


def _hung(timeout: float, cause: list[str], doing: list[str], outcomes: Sequence[RankOutcome]) -> RanksFailed:
    head = f"no end within {timeout:g} s" + (f": {cause[0]}" if cause else "")
    more = [f"  {line}" for line in cause[1:]]
    if not doing:
        doing = [f"── rank {one.rank} ──\n{one.output}" for one in outcomes]
    raised = [
        f"rank {one.rank} had failed: {one.report.line} ({one.report.place})"
        for one in outcomes
        if one.report is not None and one.report.kind == "failed"
    ]
    return RanksFailed(head, "\n".join([*more, *raised, "", *doing]))


async def _lines(rank: int, output: asyncio.StreamReader, say: Say | None) -> str:
    """All that a rank prints."""
    if say is None:
        return (await output.read()).decode(errors="replace")
    found, rest = [], b""
    while some := await output.read(LIMIT):
        *whole, rest = (rest + some).split(b"\n")
        for line in whole:
            found.append(line.decode(errors="replace"))
            say(rank, found[-1])
    if rest:
        found.append(rest.decode(errors="replace"))
        say(rank, found[-1])
    return "\n".join(found)


async def _reading(pipe: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Read from a pipe, which is closed with the transport."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    return reader, transport


def _signal(processes: list[Process], number: signal.Signals) -> None:
    for process in processes:
        if process.returncode is None:
            _signal_group(process, number)


def _signal_group(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
