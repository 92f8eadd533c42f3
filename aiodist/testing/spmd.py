"""`@spmd(world_size=4)`: an async test function that runs on as many real processes.

    from aiodist.testing import spmd

    @spmd(world_size=4)
    async def test_sum(pg):
        assert (await pg.all_reduce(np.array([pg.rank])))[0] == 6

pytest sees a plain test. It starts the processes, gives each a rank, a store on loopback and a secret,
waits with a time limit, and fails with the traceback of the rank that failed first. Arguments other
than `pg` come from `pytest.mark.parametrize` and must be JSON; those named `world_size`, `transport`,
`timeout` and `backend` override the decorator's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiodist.rendezvous import StoreServer
from aiodist.testing.forkserver import SERVERS, Forked, Request, servers
from aiodist.testing.hosts import Hosts
from aiodist.testing.worker import FAILURES

WORKER = ("-m", "aiodist.testing.worker")


Process = Forked | asyncio.subprocess.Process


@dataclass(slots=True)
class Outcome:
    """The end of one rank: its exit code (negative: the signal), output, and place in the order of failing.

    A rank that raised failed when it raised, whenever its process ended; one that died without an
    exception came before those, which most likely raised because of it.
    """

    rank: int
    code: int
    output: str
    order: int


class RanksFailed(AssertionError):
    """The error that some ranks did not end as expected."""


def spmd(
    world_size: int = 2,
    *,
    transport: str = "auto",
    timeout: float = 120.0,
    exits: Mapping[int, int] | None = None,
    env: Mapping[str, str] | None = None,
    hosts: int = 1,
    backend: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run an async test function on real processes.

    Args:
        world_size: number of processes.
        transport: AIODIST_TRANSPORT: 'auto', 'shm' or 'tcp'.
        timeout: seconds for all of it; then every rank's stacks are printed and the test fails.
        exits: exit codes that are expected, by rank (-9: killed by SIGKILL); 0 for all others.
        env: further environment variables.
        hosts: how many hosts the ranks are on, as many on each, in order: network namespaces (`Hosts`). More
            than one needs root, and the test is skipped without.
        backend: as for `init_process_group`; '' for None.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        if not parameters or parameters[0].name != "pg":
            raise TypeError(f"{function.__name__} must take the process group as its first argument, `pg`")
        path = inspect.getsourcefile(function)
        assert path is not None

        @functools.wraps(function)
        def test(**arguments: Any) -> None:
            size = arguments.get("world_size", world_size)
            chosen = arguments.get("transport", transport)
            limit = arguments.get("timeout", timeout)
            group = arguments.get("backend", backend)
            with Hosts(hosts) if hosts > 1 else contextlib.nullcontext() as places:
                prefixes = (
                    [] if places is None else [places.enter(rank * hosts // size) for rank in range(size)]
                )
                given = json.dumps(arguments)
                outcomes = asyncio.run(
                    launch(
                        [*WORKER, path, function.__qualname__, given, group],
                        size,
                        timeout=limit,
                        env={
                            "AIODIST_TRANSPORT": chosen,
                            **(places.env if places is not None else {}),
                            **(env or {}),
                        },
                        prefixes=prefixes,
                    )
                )
            check(outcomes, exits or {})

        shown = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters[1:]]
        test.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        test.spmd_function = function  # type: ignore[attr-defined]
        return test

    return decorate


async def launch(
    arguments: list[str],
    size: int,
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    prefixes: Sequence[list[str]] = (),
) -> list[Outcome]:
    """Run `python *arguments` once a rank and return how each ended.

    The ranks of a test are forked from a server, other programs are started anew.

    Args:
        arguments: of the Python interpreter.
        size: number of ranks.
        timeout: seconds; then the ranks are asked for their stacks (SIGUSR1) and killed.
        env: further environment variables.
        prefixes: by rank, what its command begins with.
    """
    secret = secrets.token_hex(32)
    server = await StoreServer.start("127.0.0.1", 0, job="spmd", secret=secret.encode())
    begun = any(name.startswith(("PYTHON", "LD_")) for name in env or {})  # read as the interpreter starts
    forks = not (begun or prefixes) and tuple(arguments[:2]) == WORKER and sys.platform == "linux"
    processes: list[Process] = []
    ended: list[int] = []
    failures, failures_in = os.pipe()  # a rank writes 'rank nanoseconds' when its function raises
    os.set_blocking(failures, False)

    async def watch(rank: int, process: Process, output: asyncio.StreamReader) -> Outcome:
        words = await output.read()
        code = await process.wait()
        ended.append(rank)
        return Outcome(rank, code, words.decode(errors="replace"), len(ended))

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
            request = Request("aiodist.testing.worker:main_forked", arguments[2:], variables, os.getcwd())
            return Forked(servers()[rank % SERVERS], request, output, [failures_in])
        return await asyncio.create_subprocess_exec(
            *(prefixes[rank] if prefixes else ()),
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[failures_in],
            env=variables | {FAILURES: str(failures_in)},
        )

    outputs: list[tuple[asyncio.StreamReader, asyncio.ReadTransport]] = []
    watches: list[asyncio.Task[Outcome]] = []
    try:
        for rank in range(size):
            ours, theirs = os.pipe()
            with os.fdopen(theirs, "wb", 0):
                outputs.append(await _reading(ours))
                processes.append(await start(rank, theirs))
            watches.append(asyncio.create_task(watch(rank, processes[rank], outputs[rank][0])))
        _, late = await asyncio.wait(watches, timeout=timeout)
        if late:
            _signal(processes, signal.SIGUSR1)  # faulthandler prints every thread's stack
            await asyncio.wait(watches, timeout=3.0)
            for process, watching in zip(processes, watches, strict=True):
                if not watching.done():  # a rank may be over, and a process that it started hold its output
                    _signal_group(process, signal.SIGKILL)
        outcomes = await asyncio.gather(*watches)
        _put_in_order(outcomes, failures)
        if late:
            raise RanksFailed(f"no end within {timeout:g} s\n" + "\n".join(map(_report, outcomes)))
        return outcomes
    finally:
        _signal(processes, signal.SIGKILL)
        for watching in watches:
            watching.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for _, transport in outputs:
            transport.close()
        for process in processes:
            await process.wait()
        os.close(failures)
        os.close(failures_in)
        await server.aclose()


async def _reading(pipe: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Read from a pipe, which is closed with the transport."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    return reader, transport


def _put_in_order(outcomes: list[Outcome], failures: int) -> None:
    """Sort out who failed first, from what the ranks wrote."""
    raised: dict[int, int] = {}
    with contextlib.suppress(BlockingIOError):
        for line in os.read(failures, 1 << 16).decode().splitlines():
            rank, when = line.split()
            raised.setdefault(int(rank), int(when))
    in_order = sorted(outcomes, key=lambda outcome: (raised.get(outcome.rank, 0), outcome.order))
    for place, outcome in enumerate(in_order, 1):
        outcome.order = place


def check(outcomes: list[Outcome], exits: Mapping[int, int]) -> None:
    """Raise `RanksFailed` unless every rank ended as expected; the first to fail comes first."""
    wrong = [outcome for outcome in outcomes if outcome.code != exits.get(outcome.rank, 0)]
    if wrong:
        wrong.sort(key=lambda outcome: outcome.order)
        raise RanksFailed("\n".join(map(_report, wrong)))


def _report(outcome: Outcome) -> str:
    return f"── rank {outcome.rank} exited with {outcome.code} ──\n{outcome.output}"


def _signal(processes: list[Process], number: signal.Signals) -> None:
    for process in processes:
        if process.returncode is None:
            _signal_group(process, number)


def _signal_group(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
