"""The page beside a real job: where its address goes, what it tells, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from aiodist.base.errors import UsageError
from aiodist.cli.main import main
from aiodist.observe.dashboard.run import metrics_token
from aiodist.observe.host import read_jobs
from aiodist.observe.page import COLUMNS
from tests.levels import COSTLY
from tests.observe.dashboard import job
from tests.observe.dashboard.chromium import browser, path
from tests.observe.shown import apply

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux"),
    pytest.mark.timeout(200),
]

PATIENCE = 60.0
JOB = job.__file__
RUN = [sys.executable, "-m", "aiodist"]
PROCESSES = ["--nproc-per-node=4", JOB]


class Started:
    """A command that serves a page.

    Attributes:
        words: what it has said, as far as it was read.
    """

    def __init__(self, process: subprocess.Popen[str], state: Path) -> None:
        self.process = process
        self.state = state
        self.words = ""

    def line(self, pattern: str) -> str:
        """Read until a line has this → the line."""
        assert self.process.stderr is not None
        for row in self.process.stderr:
            self.words += row
            if re.search(pattern, row):
                return row
        raise AssertionError(f"no {pattern}: {self.words}")

    def url(self) -> str:
        """The page's address, from the file that it says."""
        line = self.line(r"\.url$")
        self.file = Path(line.split()[-1])
        return self.file.read_text().strip()

    def end(self) -> int:
        """Wait for its end → its exit code."""
        _, rest = self.process.communicate(timeout=PATIENCE)
        self.words += rest
        return self.process.returncode


@contextlib.contextmanager
def started(tmp_path: Path, *words: str, **environ: str) -> Iterator[Started]:
    state = tmp_path / "state"
    process = subprocess.Popen(
        [*RUN, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_STATE_HOME": str(state)} | environ,
        start_new_session=True,
    )
    try:
        yield Started(process, state)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


@contextlib.asynccontextmanager
async def _stream(url: str) -> Any:
    """Sign in, and watch → (session, the data's address, cookie's header, the stream)."""
    place = urlsplit(url)
    base = f"http://{place.netloc}"
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        told = {"token": place.fragment.removeprefix("token=")}
        async with http.post(f"{base}/session", json=told, headers={"Origin": base}) as answer:
            assert answer.status == 200
            data = base + (await answer.json())["path"]
            headers = {"Cookie": f"aiodist={answer.cookies['aiodist'].value}"}
        limit = aiohttp.ClientTimeout(total=PATIENCE)
        async with http.get(f"{data}events", headers=headers, timeout=limit, read_bufsize=1 << 22) as stream:
            yield http, data, headers, Shown(stream.content)


class Shown:
    """What a page shows, from the events."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._state: dict[str, Any] = {}

    async def until(self, part: str, fits: Callable[[Any], Any]) -> Any:
        """Read events until a part has a value that fits."""
        while part not in self._state or not fits(self._state[part]):
            line = await self._stream.readline()
            assert line, f"the stream has ended without {part}: {self._state}"
            if line.startswith(b"data: "):
                told = json.loads(line.removeprefix(b"data: "))
                self._state = apply(self._state, told) if self._state else told
        return self._state[part]


def descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that these have."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def everybodys_words() -> str:
    """The command lines of all processes: what `ps` shows to every user."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
    return "\n".join(found)


@pytest.mark.slow(COSTLY)
def test_the_page_beside_a_job_tells_its_ranks_and_logs_and_ends_with_it(tmp_path: Path) -> None:
    async def watch(url: str) -> list[str]:
        async with _stream(url) as (http, data, headers, stream):
            await stream.until("rows", lambda rows: len(rows) == 4)
            outputs = (
                await stream.until("logs", lambda logs: any(one["rank"] == 3 for one in logs["outputs"]))
            )["outputs"]
            (number,) = (one["id"] for one in outputs if one["rank"] == 3)
            lines: list[str] = []
            while not lines:  # a rank that is known need not have written yet
                async with http.get(f"{data}logs?of={number}&stream=stdout", headers=headers) as answer:
                    lines = (await answer.json())["lines"]
            table = [[0.0] * 4] * 4
            while not table[0][2]:  # counts are written down a moment after their operations
                async with http.get(f"{data}matrix", headers=headers) as answer:
                    table = (await answer.json())["implied"]
            assert table[0][1] > table[0][2]  # it sends, too
            await stream.until("code", lambda code: code == 0)
            return list(lines)

    with started(tmp_path, "run", "--dashboard", *PROCESSES, "2") as job:
        url = job.url()
        token = urlsplit(url).fragment.removeprefix("token=")
        assert stat.S_IMODE(job.file.stat().st_mode) == 0o600
        assert len(token) > 40 and token not in everybodys_words()
        if os.geteuid() == 0:
            other = subprocess.run(
                ["cat", job.file], user=65534, group=65534, extra_groups=(), capture_output=True
            )
            assert other.returncode != 0 and token.encode() not in other.stdout
        lines = asyncio.run(watch(url))
        assert job.end() == 0
    assert lines[0] == "rank 3 is at step 0 red <img src=x onerror=document.title='owned'>"
    assert token not in job.words
    assert "a browser has signed in" in job.words
    assert not job.file.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)).close()
    (folder,) = (one for one in (job.state / "aiodist/jobs").iterdir() if one.is_dir())
    assert token not in "".join(file.read_text() for file in folder.rglob("*.log"))


@pytest.mark.slow(COSTLY)
def test_after_a_death_the_page_says_who_how_and_when_and_has_the_logs(tmp_path: Path) -> None:
    """As the launcher's box does. The logs are in a folder that was named by a relative path."""

    async def watch(url: str) -> tuple[Any, list[str]]:
        async with _stream(url) as (http, data, headers, stream):
            outputs = (
                await stream.until("logs", lambda logs: any(one["rank"] == 1 for one in logs["outputs"]))
            )["outputs"]
            (number,) = (one["id"] for one in outputs if one["rank"] == 1)
            await stream.until("code", lambda code: code)
            verdicts = await stream.until("verdicts", len)
            async with http.get(f"{data}logs?of={number}&stream=stdout", headers=headers) as answer:
                return verdicts, list((await answer.json())["lines"])

    logs = os.path.relpath(tmp_path / "logs")
    options = ["--dashboard", f"--log-dir={logs}", "--nproc-per-node=4"]
    with started(tmp_path, "run", *options, JOB, "1", "killed") as job:
        verdicts, lines = asyncio.run(watch(job.url()))
        assert job.end() == 137
    assert lines and lines[0].startswith("rank 1 is at step 0")
    (verdict,) = verdicts
    assert re.fullmatch(r"rank 1 failed first: killed by SIGKILL at \d\d:\d\d:\d\d UTC", verdict["title"])
    assert verdict["ranks"] == [1] and verdict["kind"] == "ended"
    assert any(line.startswith("killed by SIGKILL after ") for line in verdict["lines"])
    assert verdict["lines"][-1].startswith("→ find out who killed rank 1: ")
    assert "╭─ aiodist run: rank 1 failed first ─" in job.words


@pytest.mark.slow("waits until a job has gone")
def test_a_dashboard_of_its_own_says_how_its_job_ended(tmp_path: Path) -> None:
    async def watch(url: str) -> Any:
        rank, pid = map(COLUMNS.index, ("rank", "pid"))
        async with _stream(url) as (_, _, _, stream):
            rows = await stream.until("rows", lambda rows: len(rows) == 4)
            (victim,) = (row[pid] for row in rows if row[rank] == 1)
            os.kill(victim, signal.SIGKILL)
            await stream.until("code", lambda code: code == 137)
            return await stream.until("verdicts", len)

    with started(tmp_path, "run", *PROCESSES, "100") as job:
        key = ""
        while not key:
            own = descendants(job.process.pid)
            seen = [one for one in read_jobs() if one.ranks[0].recording.pid in own]
            key = seen[0].key if seen and len(seen[0].ranks) == 4 else ""
            assert job.process.poll() is None
        with started(tmp_path, "dashboard", key) as page:
            (verdict,) = asyncio.run(watch(page.url()))
        assert job.end() == 137
    assert verdict["title"].startswith("rank 1 failed first: killed by SIGKILL at ")


@pytest.mark.slow("three ranks die and come back")
def test_the_page_follows_a_job_whose_ranks_die_and_come_back(tmp_path: Path) -> None:
    """Its epoch and its members are those of the job, and nothing stays of those that were."""
    go = tmp_path / "go"

    async def watch(url: str) -> None:
        rank, pid, epoch, doing = map(COLUMNS.index, ("rank", "pid", "epoch", "doing"))
        async with _stream(url) as (_, _, _, stream):
            rows = await stream.until("rows", lambda rows: len(rows) == 3)
            for victim in (2, 0, 1):
                dead, before = rows[victim][pid], rows[victim][epoch]
                os.kill(dead, signal.SIGKILL)
                rows = await stream.until(
                    "rows",
                    lambda rows, before=before: (
                        len(rows) == 3
                        and len({row[epoch] for row in rows}) == 1
                        and rows[0][epoch] > before
                        and all(row[doing] in ("running", "waiting") for row in rows)
                    ),
                )
                assert [row[rank] for row in rows] == [0, 1, 2]
                assert dead not in [row[pid] for row in rows]
                assert all(Path(f"/proc/{row[pid]}").exists() for row in rows)
                now = rows[0][epoch]
                job = await stream.until("job", lambda job, now=now: job["epoch"] == now)
                assert job["size"] == 3
            history = [entry["text"] for entry in await stream.until("history", len)]
            assert sum("has ended without leaving" in text for text in history) == 3, history
            assert sum(" began, with " in text for text in history) >= 3, history
            go.touch()
            await stream.until("code", lambda code: code == 0)

    script = [str(Path(JOB).with_name("elastic_job.py")), str(go)]
    with started(tmp_path, "run", "--dashboard", "--nproc-per-node=3", "--max-restarts=9", *script) as job:
        asyncio.run(watch(job.url()))
        assert job.end() == 0


@pytest.mark.slow("waits until a page that was closed is not loaded again")
def test_a_death_can_be_read_until_the_page_is_closed(tmp_path: Path) -> None:
    async def watch(url: str, job: Started) -> tuple[int, list[str]]:
        async with _stream(url) as (http, data, headers, stream):
            await stream.until("code", lambda code: code)
            end = await asyncio.to_thread(job.end)  # the launcher does not wait for who reads
            async with http.get(f"{data}logs?of=0&stream=stdout", headers=headers) as answer:
                return end, list((await answer.json())["lines"])

    with started(tmp_path, "run", "--dashboard", *PROCESSES, "1", "fails") as job:
        url = job.url()
        code, lines = asyncio.run(watch(url, job))
    assert code == 7 and lines
    assert "stays for 10 minutes, or until it is closed" in job.words
    assert "aiodist explain" in job.words
    until = time.monotonic() + PATIENCE
    while job.file.exists():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow(COSTLY)
def test_a_dashboard_of_its_own_ends_by_ctrl_c(tmp_path: Path, job_here: str) -> None:
    left = tmp_path / "state/aiodist/dashboard-99999999.url"
    left.parent.mkdir(parents=True, mode=0o700)
    left.touch()
    with started(tmp_path, "dashboard", job_here) as page:
        url = page.url()
        assert not left.exists()
        page.process.send_signal(signal.SIGINT)
        assert page.end() == 0
    assert "Traceback" not in page.words
    assert urlsplit(url).hostname == "127.0.0.1"
    assert not page.file.exists()


@pytest.mark.slow(COSTLY)
def test_a_terminal_is_shown_the_address_and_no_file_is_made(tmp_path: Path, job_here: str) -> None:
    leader, follower = os.openpty()
    try:
        process = subprocess.Popen(
            [*RUN, "dashboard", job_here],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=follower,
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
            start_new_session=True,
        )
        shown = b""
        while not shown.endswith(b"\n"):
            shown += os.read(leader, 4096)
        assert re.search(rb"http://127\.0\.0\.1:\d+/#token=[\w-]{40,}\r\n", shown)
        assert not (tmp_path / "aiodist").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--host", "0.0.0.0"], "ssh -L"),
        (["--host", "192.0.2.1"], "ssh -L"),
        (["--port", "70000"], "not a port"),
        (["JOB", "--host", "192.0.2.1", "--allow-insecure"], "cannot listen"),
        (["no-such-job"], "there is no job"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(
    words: list[str], why: str, job_here: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboard", *(job_here if word == "JOB" else word for word in words)]) in (1, 2)
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1


def test_the_file_of_the_metrics_token_is_for_its_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    made = metrics_token(str(file))
    assert len(made) > 40 and metrics_token(str(file)) == made
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    with pytest.raises(UsageError, match="read by other users"):
        metrics_token(str(file))
    file.chmod(0o600)
    file.write_text("short\n")
    with pytest.raises(UsageError, match="no token of 16"):
        metrics_token(str(file))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "missing" / "token")
    with pytest.raises(UsageError, match="cannot be used"):
        metrics_token(str(link))


BEAT = "Number(document.body?.dataset.beat || 0)"
CELLS = (
    "[...document.querySelectorAll('#ranks tbody tr')]"
    ".map(row => [...row.cells].map(cell => cell.textContent))"
)


@pytest.mark.slow("a real browser")
@pytest.mark.skipif(path() is None, reason="there is no chromium")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    with started(tmp_path, "run", "--dashboard", *PROCESSES, "6", "stalls", AIODIST_STALL_AFTER="3") as job:
        url = job.url()
        with browser() as tab:
            tab.show(1200, 800)
            tab.open(url)
            text = tab.until("document.querySelector('main')?.innerText", bool)  # what is painted first
            assert "Waiting for the first look" in text or "job.py" in tab.run("document.title")
            tab.until(BEAT, lambda beat: beat > 0)
            assert "Waiting for" not in tab.run("document.querySelector('main').innerText")
            first = tab.until(CELLS, lambda rows: len(rows) == 4 and rows[0][5] not in ("·", "0"))
            assert [row[0] for row in first] == ["0", "1", "2", "3"]
            assert "token" not in tab.run("location.href")
            tab.until(CELLS, lambda rows: rows != first)  # rows go on
            tab.click("tab-timeline")
            tab.until("document.querySelectorAll('#timeline-text tbody tr').length", lambda count: count == 4)
            tab.click("tab-bytes")
            tab.until("document.querySelectorAll('#flows tbody tr').length", lambda count: count == 10)
            tab.click("tab-logs")
            shown = tab.run("document.querySelector('input[value=stdout]').click()") or tab.until(
                "document.getElementById('log').textContent", lambda text: "is at step" in text
            )
            assert "red <img src=x onerror=" in shown and "\x1b" not in shown and "owned\x07" not in shown
            assert tab.run("document.querySelectorAll('#log img').length") == 0
            tab.click("tab-members")
            tab.until("document.getElementById('history').textContent", lambda text: "began on" in text)
            verdict = tab.until(
                "document.getElementById('verdicts').textContent", lambda text: "for rank 2 of 4" in text
            )
            number = next(
                number
                for number, line in enumerate(Path(JOB).read_text().splitlines(), 1)
                if "# cause" in line
            )
            assert f"job.py:{number} in main" in verdict
            assert "its event loop is blocked" in verdict
            assert "job.py" in tab.run("document.title") and "owned" not in tab.run("document.title")
            tab.open(url)  # again, in the same browser: it is signed in, though the token is used
            tab.until(CELLS, lambda rows: len(rows) == 4)
            assert tab.complaints() in ([], [one for one in tab.complaints() if "/session" in one])
            tab.run("localStorage.clear()")
            tab.open("about:blank")
            tab.open(url)
            tab.until(
                "document.getElementById('notice')?.textContent", lambda text: text and "used already" in text
            )
            assert tab.run("document.querySelectorAll('#ranks tbody tr').length") == 0
        job.process.send_signal(signal.SIGINT)
        assert job.end() in (130, 2)
