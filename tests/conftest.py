"""Every test leaves the process as it found it: no descriptor, child, thread or unhandled loop error more."""

from __future__ import annotations

import asyncio
import bisect
import functools
import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from aiodist.base.environment import Tls, tls
from aiodist.testing.forkserver import servers

# `tests` is not part of the wheel: what tests share is found from the repository's root.
ROOT = str(Path(__file__).parents[1])
TESTS = str(Path(__file__).parent)
if ROOT not in sys.path:
    sys.path.append(ROOT)

from tests.processes import children  # noqa: E402

pytest_plugins = ["tests.limits", "tests.skips", "tests.levels", "tests.budget"]

# What was ignored when the run began (SIGHUP under nohup, SIGINT in a shell's background job) would be
# ignored by all that tests start, too. A handler is not handed on: so they begin as in a terminal, and this
# run is not ended by the signal.
for _signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, lambda *_: None)

# Without one, whoever starts a group would make a secret in the home of who runs the tests.
os.environ.setdefault("AIODIST_SECRET", "of the tests, and long enough for one")
# Jobs that fail write down what their ranks did last: not where those of who runs the tests are.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _state = tempfile.TemporaryDirectory(prefix="aiodist-tests-")
    os.environ["XDG_STATE_HOME"] = _state.name

# No example has a time of its own: on a busy machine any of them may be slow. What decides a landing draws
# the same examples every time; everybody else draws new ones.
settings.register_profile(
    "tests",
    settings.default,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("tests")

# libuv's first loop opens one pipe for the process's life.
uvloop.new_event_loop().close()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Have each worker of pytest-xdist begin with another part: what one has rewritten, the others read."""
    report = yield
    worker: dict[str, Any] | None = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Directory) and str(collector.path) == TESTS:
        sizes = [sum(file.stat().st_size for file in one.path.rglob("*.py")) for one in report.result]
        before = sum(sizes) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        first = bisect.bisect(list(itertools.accumulate(sizes)), before)
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have all workers number the tests alike, by their files' names, as one process would."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parts)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: nearly all that is made then stays, and every worker makes it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Have collections of garbage pass over what is imported for good: torch alone costs half a second."""
    gc.collect()
    gc.freeze()


_ended = itertools.count(1)


def pytest_runtest_logfinish() -> None:
    """Now and then, have them also pass over what tests have imported, and what is remembered of them."""
    if next(_ended) % 100 == 0:
        pytest_collection_finish()


def descriptors() -> set[str]:
    """What this process holds open, apart from plain files and terminals."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # twice a test: Path.iterdir() takes as long again
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(("socket:", "anon_inode:", "pipe:", "/memfd:")):
            found.add(target if not target.startswith("anon_inode:") else f"{target}#{name}")
    return found


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Makes a CA and a certificate by the recipe in docs/security.md → the AIODIST_TLS_* variables.

    The argument is the CA's name: the same one gives the same files.
    """
    page = Path(__file__).parents[1] / "docs" / "security.md"
    recipe = page.read_text().split("```sh elsewhere\n")[1].split("```")[0]
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")

    @functools.cache
    def make(name: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp(name)
        subprocess.run(["sh", "-ec", recipe], cwd=folder, check=True, capture_output=True)
        files = {"CERT": "node.pem", "KEY": "node.key", "CA": "ca.pem"}
        return {f"AIODIST_TLS_{kind}": str(folder / file) for kind, file in files.items()}

    return make


@pytest.fixture
def ours(certificates: Callable[[str], dict[str, str]]) -> Tls:
    """The job's TLS."""
    return _tls(certificates("ours"))


@pytest.fixture
def theirs(certificates: Callable[[str], dict[str, str]]) -> Tls:
    """Another job's."""
    return _tls(certificates("theirs"))


def _tls(variables: dict[str, str]) -> Tls:
    found = tls(variables)
    assert found is not None
    return found


HandOver = Callable[[Path], None]
"""Makes a file, folder or link another user's."""


@pytest.fixture
def hand_over(monkeypatch: pytest.MonkeyPatch) -> HandOver:
    """Makes something another user's; who is not root becomes another user instead, and owns nothing more."""
    me = os.geteuid()
    if me == 0:
        return lambda path: os.chown(path, 4711, 4711, follow_symlinks=False)
    return lambda path: monkeypatch.setattr(os, "geteuid", lambda: me + 1)


@pytest.fixture
def port() -> int:
    """A port of the loopback that is free."""
    from tests.ports import free_port

    return free_port()


Held = tuple[set[str], set[int], set[threading.Thread]]


def held() -> Held:
    """What this process holds now."""
    return descriptors(), children(), set(threading.enumerate())


def difference(before: Held) -> list[list[str]]:
    """What this process holds beyond `before`."""
    now = held()
    return [
        sorted(now[0] - before[0]),
        sorted(str(pid) for pid in now[1] - before[1]),
        sorted(thread.name for thread in now[2] - before[2]),
    ]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Raise at the end where something is left behind, or a loop swallowed an error."""
    errors: list[dict[str, Any]] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        errors.append(context)

    for loop in (asyncio.BaseEventLoop, uvloop.Loop):  # uvloop's is none of asyncio's
        monkeypatch.setattr(loop, "call_exception_handler", note)
    before = held()
    yield
    left = difference(before)
    if left != [[], [], []]:  # a full collection takes 15 ms, half a second with torch: only where it matters
        gc.collect()
        left = difference(before)
    until = time.monotonic() + 10
    while left != [[], [], []] and time.monotonic() < until:  # what was told to end may not be through
        time.sleep(0.01)
        left = difference(before)
    assert left == [[], [], []], f"left behind: descriptors, children, threads = {left}"
    assert not errors, f"errors that the loop swallowed: {errors}"


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves something behind, or whose loop swallowed an error."""
    if {"spmd", "launch"} & set(vars(request.module)):
        servers()  # they stay
    with watched(monkeypatch):
        yield
