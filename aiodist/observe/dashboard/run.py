"""The life of a dashboard: find the job, serve the page, say where it is, end in good order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodist.base.environment.files import Folder, make_folders, open_file, read_private
from aiodist.base.errors import AiodistError, RendezvousError, UsageError, WireError
from aiodist.net.stop_signals import stop_on
from aiodist.observe.ask import ask
from aiodist.observe.choice import pick
from aiodist.observe.dashboard.auth import BrowserSessions
from aiodist.observe.dashboard.feed import Feed
from aiodist.observe.dashboard.logs import Logs
from aiodist.observe.dashboard.server import Server
from aiodist.observe.dumps import home, read_job
from aiodist.observe.ended import outcomes
from aiodist.observe.host import host_name
from aiodist.observe.outcome import Outcome
from aiodist.observe.source import Choose, Sight
from aiodist.observe.verdict import AFTER
from aiodist.observe.view import JobView

LINGER = 600.0
"""Seconds for which pages that are open when a job has failed can still be read, at most."""

_RELOAD = 5.0  # seconds without a page after which nobody is there any more
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TOKEN_BYTES = 32
_AGAIN = "the address works once; for another one: aiodist dashboard JOB (aiodist jobs shows JOB)"
_URL = re.compile(r"dashboard-(\d+)\.url")
_LEAVING = {signal.SIGINT: 0, **{signum: 128 + signum for signum in (signal.SIGTERM, signal.SIGHUP)}}


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """The options of the command line.

    Args:
        job: its script, or the beginning of its key; None: the newest.
        host, port: to listen on; 0: a free port.
        open_network: other hosts may connect.
        metrics_token_file: has the token for /metrics; made where it is missing.
        after: seconds for which something is pending before it is judged; 0: never.
        beside: a launcher started this, and says by stdin which job it is, and when that has ended.
    """

    job: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    open_network: bool = False
    metrics_token_file: str | None = None
    after: float = AFTER
    beside: bool = False


def check(options: DashboardOptions) -> None:
    """Refuse options that contradict each other."""
    if options.host not in _LOOPBACK and not options.open_network:
        raise UsageError(
            f"--host {options.host} is reached from other hosts, and the page is not encrypted",
            hint="Leave it on this host and use ssh -L; or give --allow-insecure as well",
        )
    if not 0 <= options.port < 65536:
        raise UsageError(f"--port {options.port} is not a port")


async def serve(options: DashboardOptions, say: Callable[[str], None], environ: Mapping[str, str]) -> int:
    """Serve the page until somebody ends it, or until the launcher's job has ended.

    Args:
        options: checked.
        say: shows a line to who has started this.
        environ: has the job's secret.

    Raises:
        AiodistError: the page cannot be served.
    """
    launcher = await _Launcher.begin() if options.beside else None
    logs = Logs(host_name())
    choose = _by_name(options.job) if launcher is None else launcher.choose
    sight = Sight(choose, environ if launcher is None else {**environ, **launcher.secret})
    if launcher is not None and launcher.logs:
        logs.add(launcher.logs)
    if launcher is None:
        with contextlib.suppress(RendezvousError):
            await sight.read()  # to say now that there is no such job
    feed = Feed(
        *(sight.read, logs),
        ask=ask,
        ended=_ended,
        after=options.after,
        launched=launcher is not None,
    )
    sessions = BrowserSessions(lambda: secrets.token_urlsafe(_TOKEN_BYTES))
    server = Server(
        *(feed, logs, sessions),
        names={options.host, host_name().lower()} if options.open_network else (),
        metrics_token=metrics_token(options.metrics_token_file) if options.metrics_token_file else "",
        signed_in=lambda: say("a browser has signed in; the address works no more"),
    )
    try:
        host, port = await server.start(options.host, options.port)
    except OSError as error:
        raise AiodistError(
            f"cannot listen on {options.host}, port {options.port}: {error.strerror or error}",
            hint="Give another --port, or none",
        ) from None
    try:
        async with _reading(feed):
            left = stop_on(_LEAVING) if launcher is None else None
            if options.open_network:
                say(f"WARNING: every host that reaches {host} reaches the page, which is not encrypted")
            terminal = sys.stderr.isatty() if launcher is None else launcher.terminal
            with _announced(_address(host, port), sessions.token, terminal, say):
                if launcher is not None:
                    return await _beside(launcher, feed, server, say)
                assert left is not None
                return await left
    finally:
        await server.aclose()
        await sight.aclose()


@contextlib.asynccontextmanager
async def _reading(feed: Feed) -> AsyncIterator[None]:
    """Look at the job meanwhile; an error of that ends what is done meanwhile."""
    await feed.step()
    task = asyncio.create_task(feed.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _beside(launcher: _Launcher, feed: Feed, server: Server, say: Callable[[str], None]) -> int:
    """Wait for the end of the launcher's job; of one that has failed, let open pages be read."""
    code = await launcher.end()
    await feed.over(code, launcher.dump(), launcher.outcome)
    if code and server.streams:
        say(f"the page stays for {LINGER / 60:.0f} minutes, or until it is closed")
        launcher.let_go()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(contextlib.suppress(TimeoutError))
            await stack.enter_async_context(asyncio.timeout(LINGER))
            alone = 0.0
            while alone < _RELOAD:
                await asyncio.sleep(0.5)
                alone = 0.0 if server.streams else alone + 0.5
    return 0


class _Launcher:
    """The lines of JSON that a launcher sends by stdin: {'run', 'secret', 'logs', 'terminal'} first, at the
    end {'over': its exit code, 'records': folder, 'outcome': what it says}. Its own end is an end, too."""

    def __init__(self, lines: asyncio.StreamReader, first: dict[str, Any]) -> None:
        self._lines = lines
        self._run = str(first["run"])
        self._records = ""
        self.outcome: Outcome | None = None
        self.secret = {"AIODIST_SECRET": str(first["secret"])} if first.get("secret") else {}
        self.logs = str(first.get("logs") or "")
        self.terminal = bool(first.get("terminal"))

    @classmethod
    async def begin(cls) -> _Launcher:
        """Wait for its first words."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides when the job ends
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        try:
            return cls(lines, json.loads(await lines.readline()))
        except (ValueError, KeyError, TypeError):
            raise UsageError("--beside is for 'aiodist run --dashboard'") from None

    def choose(self, jobs: Sequence[JobView]) -> JobView | None:
        """The launcher's job, of all: of several the one that began last."""
        return next((job for job in jobs if job.run == self._run), None)

    async def end(self) -> int:
        """Wait for its end → the job's exit code."""
        while line := await self._lines.readline():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                said = json.loads(line)
                code = int(said["over"])
                self._records = str(said.get("records") or "")
                with contextlib.suppress(WireError):
                    self.outcome = Outcome.from_json(said["outcome"]) if said.get("outcome") else None
                return code
        return 1

    def dump(self) -> JobView | None:
        """The record of its dead ranks."""
        if not self._records:
            return None
        with contextlib.suppress(AiodistError):
            return read_job(self._records)
        return None

    def let_go(self) -> None:
        """Close stdout, by which the launcher sees that it need not wait."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        os.close(nowhere)


def _by_name(wanted: str | None) -> Choose:
    """Of all jobs the one that was named, and from then on only that one, and what its launcher starts in its
    place."""
    known: list[JobView] = []

    def choose(jobs: Sequence[JobView]) -> JobView | None:
        if known:
            key, run = known[-1].key, known[-1].run
            same = (job for job in jobs if job.key == key)
            found = next(same, None) or next((job for job in jobs if run and job.run == run), None)
        elif jobs or wanted is not None:
            found = pick(jobs, wanted)
        else:
            found = None
        if found is not None:
            known[:] = [found]
        return found

    return choose


def _ended(job: JobView) -> tuple[JobView | None, Outcome] | None:
    """Read the dumps of a job that has ended, and its launcher's verdict; None: its launcher wrote none. The
    first is None where its ranks left no dumps that can be read."""
    outcome = outcomes().get(job.run) if job.run else None
    if outcome is None:
        return None
    with contextlib.suppress(AiodistError):
        return read_job(outcome.folder) if outcome.folder else None, outcome
    return None, outcome


def _address(host: str, port: int) -> str:
    shown = host_name() if host in ("0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


@contextlib.contextmanager
def _announced(address: str, token: str, terminal: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Say where the page is. The token goes to a terminal only: what else takes our words is kept, and read
    by others; then it is in a file for this user alone, which is removed in the end."""
    url = f"{address}#token={token}"
    if terminal:
        say(f"the page: {url}")
        say(_AGAIN)
        yield
        return
    path = home(os.environ).parent
    make_folders(path.parent, 0o700)
    name = f"dashboard-{os.getpid()}.url"
    with Folder.open(path, make=True) as folder:
        _sweep(folder)
        with os.fdopen(folder.fresh(name), "w") as file:
            file.write(f"{url}\n")
        say(f"the page's address, which works once, is in {path / name}")
        try:
            yield
        finally:
            folder.remove(name)


def _sweep(folder: Folder) -> None:
    """Remove the addresses of dashboards that were killed: nobody answers there."""
    for name in folder.names():
        if (named := _URL.fullmatch(name)) and not os.path.exists(f"/proc/{named[1]}"):
            folder.remove(name)


def metrics_token(path: str) -> str:
    """The token of a file, which is made, for this user alone, where it is missing.

    Raises:
        UsageError: it cannot be read or made, others may read it, or it holds none.
    """
    what = f"the file {path!r} of --metrics-token-file"
    try:
        with contextlib.suppress(FileExistsError):
            handle = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        found = read_private(what, path, shared=True, most=4096).decode(errors="replace").strip()
    except OSError as error:
        raise UsageError(f"{what} cannot be used: {error.strerror or error}") from None
    if len(found) < 16 or not found.isascii() or not found.isprintable():
        raise UsageError(f"{what} has no token of 16 characters or more", hint=f"rm {Path(path)}")
    return found
