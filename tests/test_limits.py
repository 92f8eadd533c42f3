"""A test that does not end fails by name at its limit, the others run, and the summary is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.levels import COSTLY, few
from tests.processes import run_to_end
from tests.skips import summary

ROOT = Path(__file__).parents[1]
HEAD = """
import asyncio, ctypes, threading, time
import pytest, uvloop

def loops():
    return pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])

"""


NATIVE = """
def test_wrong():
    assert 1 == 2

def test_native():
    library = ctypes.{library}(None)
    lock = ctypes.create_string_buffer(128)
    while True:
        library.pthread_mutex_lock(lock)

def test_after():
    pass
"""
WORKERS = pytest.mark.parametrize("workers", few([0, 1], [1]))


def run(
    tmp_path: Path,
    body: str,
    *,
    again: float = 30.0,
    limit: float = 1.0,
    workers: int = 0,
    marked: str | None = None,
) -> tuple[int, str]:
    """Run tests of a file with a limit, in workers of pytest-xdist or without → exit code, what it shows."""
    (tmp_path / "test_it.py").write_text(HEAD + body)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    ours = [f"-ptests.{name}" for name in ("limits", "skips", "levels")]
    # None of these tests uses the plugins that are left out, and to import them is half of such a run.
    plugins = [*ours, *(f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "aiodist"))]
    options = [f"--timeout={limit}", "-o", f"limit_again={again}", f"-n{workers}", str(tmp_path)]
    options += [] if marked is None else ["-m", marked]
    done: subprocess.CompletedProcess[str] = run_to_end(
        [*command, *plugins, *options], {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}, 120
    )
    return done.returncode, done.stdout + done.stderr


def failed(output: str) -> set[str]:
    """Tests that the summary lists."""
    return set(re.findall(r"^(?:FAILED|ERROR) .*?::(\S+)", output, re.MULTILINE))


@pytest.mark.slow(COSTLY)
@WORKERS
def test_whatever_hangs_fails_by_name_and_the_others_run(tmp_path: Path, workers: int) -> None:
    code, output = run(
        tmp_path,
        """
async def test_awaits():
    await asyncio.Event().wait()

def test_sleeps():
    time.sleep(1000)

def test_joins_a_thread():
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    threading.enumerate()[-1].join()

def test_spins():
    while True:
        pass

@loops()
def test_loop(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.Event().wait())

@pytest.fixture
def stuck():
    yield
    time.sleep(1000)

def test_fixture(stuck):
    pass

@pytest.fixture
async def slow():
    await asyncio.Event().wait()

async def test_async_fixture(slow):
    pass

def test_after():
    pass

async def test_after_too():
    await asyncio.sleep(0)
""",
        workers=workers,
    )
    assert code == 1
    stuck = {"test_awaits", "test_sleeps", "test_joins_a_thread", "test_spins", "test_loop[new_event_loop0]"}
    stuck |= {"test_loop[new_event_loop1]", "test_fixture", "test_async_fixture"}
    assert failed(output) == stuck, output
    assert output.count("Overdue: no end within 1 s") >= len(stuck), output
    assert "3 passed" in output  # that of the fixture, too
    assert "MainThread" not in output, "its stack is the failure's"
    assert "time.sleep" in output


@pytest.mark.slow(COSTLY)
def test_what_swallows_the_failure_is_told_again(tmp_path: Path) -> None:
    code, output = run(
        tmp_path,
        """
def test_swallows():
    for _ in range(2):
        try:
            time.sleep(1000)
        except BaseException:
            pass
    time.sleep(1000)

@loops()
def test_callback(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.get_loop().call_soon(time.sleep, 1000)
        runner.run(asyncio.Event().wait())

@pytest.fixture
def bad():
    yield
    time.sleep(1000)

def test_fails_before(bad):
    assert False, "the test itself"

def test_after():
    pass
""",
        again=0.5,
    )
    assert code == 1
    stuck = {"test_swallows", "test_callback[new_event_loop0]", "test_callback[new_event_loop1]"}
    assert failed(output) == {*stuck, "test_fails_before"}, output
    assert "AssertionError: the test itself" in output
    assert re.search(r"^FAILED .*::test_fails_before", output, re.MULTILINE)
    assert re.search(r"^ERROR .*::test_fails_before", output, re.MULTILINE), "its fixture, too"
    assert "1 passed" in output


@pytest.mark.slow(COSTLY)
def test_an_entry_without_a_line_ends_no_run(tmp_path: Path) -> None:
    """The limit may be raised at an instruction of the compiler's own, which belongs to no line."""
    code, output = run(
        tmp_path,
        """
import sys, types

def test_nowhere():
    try:
        frame = sys._getframe()
    except ValueError as error:
        pass
    starts = [start for start, _, line in frame.f_code.co_lines() if line is None]
    nowhere = types.TracebackType(None, frame, starts[-1], -1)
    assert nowhere.tb_lineno is None
    try:
        raise ValueError("inner").with_traceback(nowhere)
    except ValueError as error:
        raise KeyError("outer").with_traceback(nowhere) from error

def test_after():
    pass
""",
        limit=60,
    )
    assert code == 1
    assert failed(output) == {"test_nowhere"}, output
    assert "ValueError: inner" in output and "KeyError: 'outer'" in output
    assert "1 passed" in output


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("library", ["CDLL", "PyDLL"])
def test_who_does_not_react_ends_the_run(library: str, tmp_path: Path) -> None:
    """Where it holds the interpreter, too, as ctypes.PyDLL does, there is nothing but a stack."""
    code, output = run(tmp_path, NATIVE.format(library=library), again=0.2)
    assert code == 1, output
    assert re.search(r'File ".*/test_it.py", line \d+ in test_native', output), output
    if library == "CDLL":
        assert "::test_native has no end within 1 s" in output
        assert failed(output) == {"test_wrong"}
        assert "1 failed in" in output


@pytest.mark.slow(COSTLY)
def test_who_does_not_react_in_a_worker_ends_that_one_alone(tmp_path: Path) -> None:
    code, output = run(tmp_path, NATIVE.format(library="CDLL"), again=0.2, workers=1)
    assert code == 1, output
    assert failed(output) == {"test_wrong", "test_native"}, output
    assert re.search(r'File ".*/test_it.py", line \d+ in test_native', output), output
    assert "2 failed, 1 passed" in output


@pytest.mark.parametrize(
    ("reasons", "lines"),
    [
        ([], []),
        (["no GPU"], ["skipped 1: 1 no GPU"]),
        (["b", "a", "b"], ["skipped 3: 2 b; 1 a"]),
        (
            ["x" * 60, "x" * 60, "y" * 60, "z"],
            ["skipped 4: 2 " + "x" * 60 + ";", "  1 " + "y" * 60 + "; 1 z"],
        ),
    ],
)
def test_skips_are_counted_by_reason(reasons: list[str], lines: list[str]) -> None:
    assert summary(reasons) == lines


@pytest.mark.slow(COSTLY)
@WORKERS
def test_skips_are_a_line_and_failures_are_listed(tmp_path: Path, workers: int) -> None:
    _, output = run(
        tmp_path,
        """
@pytest.mark.parametrize("n", range(100))
@pytest.mark.skip(reason="not today")
def test_skipped(n):
    pass

@pytest.mark.skipif(True, reason="never")
def test_other():
    pass

def test_wrong():
    assert 1 == 2

def test_error(missing):
    pass
""",
        workers=workers,
    )
    assert "skipped 101: 100 not today; 1 never\n" in output
    assert "SKIPPED" not in output
    assert failed(output) == {"test_wrong", "test_error"}


LEVELS = """
@pytest.mark.slow("many of a kind")
@pytest.mark.parametrize("n", range(3))
def test_many(n):
    pass

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.slow("minutes"))])
def test_some(n):
    pass
"""


@pytest.mark.slow(COSTLY)
@WORKERS
def test_slow_tests_are_left_out_and_counted_by_reason(tmp_path: Path, workers: int) -> None:
    code, output = run(tmp_path, LEVELS, workers=workers)
    assert code == 0, output
    assert "left out as slow: 4; `-m slow` runs them\n" in output
    assert "1 passed" in output


@pytest.mark.parametrize(("marked", "count"), [("slow", 4), ("", 5)])
def test_slow_tests_run_when_asked_for(tmp_path: Path, marked: str, count: int) -> None:
    code, output = run(tmp_path, LEVELS, marked=marked)
    assert code == 0, output
    assert f"{count} passed" in output
    assert "left out" not in output


@pytest.mark.slow(COSTLY)
@WORKERS
def test_a_slow_test_needs_a_reason(tmp_path: Path, workers: int) -> None:
    markers = ["slow", "slow()", "slow('')", "slow(3)", "slow('why', 'else')", "slow('why')"]
    tests = [f"@pytest.mark.{marker}\ndef test_{n}(): pass\n" for n, marker in enumerate(markers)]
    code, output = run(tmp_path, "".join(tests), workers=workers)
    assert code == 2 - workers, output
    wrong = ", ".join(f"test_it.py::test_{n}" for n in range(len(markers) - 1))
    assert f"pytest.mark.slow takes the reason, as one text: {wrong}\n" in output
