"""An outside library whose tests use `@spmd`, run by pytest as its author would: what passes, what is said.

Runs of pytest take seconds, so each shows many things.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aiodist.testing import run as running
from aiodist.testing import spmd
from aiodist.testing.outcome import RanksFailed
from tests.levels import COSTLY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tells what recorders' files hold")

FILES = {
    "pyproject.toml": """
        [tool.pytest.ini_options]
        pythonpath = ["src"]
        asyncio_default_fixture_loop_scope = "function"
        [tool.coverage.run]
        source = ["meanlib"]
        branch = true
    """,
    "src/meanlib.py": """
        import numpy as np


        async def mean(pg, x):
            total = await pg.all_reduce(np.array([float(x)]))
            if pg.rank == 1:
                return total[0] / pg.size
            return total[0] / pg.size


        async def bad(pg):
            raise ValueError("the batch is bad")
    """,
    "tests/__init__.py": "",
    "tests/helpers.py": """
        def expected(size):
            return sum(range(size)) / size
    """,
    "tests/conftest.py": """
        import dataclasses
        import threading

        import pytest


        @dataclasses.dataclass
        class Config:
            steps: int


        @pytest.fixture(scope="module")
        def config():
            return Config(3)


        @pytest.fixture
        def lock():
            return threading.Lock()
    """,
    "tests/test_good.py": """
        import logging
        import os
        import unittest
        import warnings

        import pytest
        from meanlib import bad, mean

        from aiodist.testing import spmd

        from .helpers import expected


        @spmd(world_size=3)
        async def test_fixtures(pg, config, tmp_path):
            print("hello from", pg.rank)
            assert config.steps == 3 and type(config).__name__ == "Config"
            (tmp_path / f"{pg.rank}").touch()
            await pg.barrier()
            assert len(list(tmp_path.iterdir())) == 3
            assert await mean(pg, pg.rank) == expected(pg.size)


        class TestClass:
            def setup_method(self):
                self.word = "set up"

            @pytest.mark.parametrize("value", [{1, 2}, b"bytes"])
            @spmd
            async def test_method(self, pg, value):
                assert self.word == "set up" and len(value) in (2, 5)
                with pytest.raises(ValueError, match="batch"):
                    await bad(pg)


        class TestUnit(unittest.TestCase):
            def setUp(self):
                self.word = "unit"

            @spmd
            async def test_unit(self, pg):
                self.assertEqual(self.word, "unit")


        @spmd
        async def test_own(pg, monkeypatch, caplog, capsys, recwarn):
            monkeypatch.setenv("X", str(pg.rank))
            assert os.environ["X"] == str(pg.rank)
            logging.getLogger("a").warning("of rank %d", pg.rank)
            assert caplog.messages == [f"of rank {pg.rank}"]
            print("said")
            assert capsys.readouterr().out == "said\\n"
            warnings.warn("oh")
            assert len(recwarn) == 1


        @spmd
        async def test_skip_on_one(pg):
            if pg.rank == 1:
                pytest.skip("no device")
            await pg.barrier()


        @spmd
        async def test_import_skip(pg):
            pytest.importorskip("no_such_module")


        @spmd
        async def test_xfail(pg):
            if pg.rank == 0:
                pytest.xfail("known")
            await pg.barrier()


        @pytest.mark.xfail(strict=True)
        @spmd
        async def test_xfail_mark(pg):
            assert pg.rank == 7
    """,
    "tests/test_bad.py": """
        import asyncio
        import os
        import signal

        import numpy as np
        from meanlib import bad

        from aiodist.testing import spmd


        @spmd(world_size=3)
        async def test_compare(pg):
            print("computing")
            total = await pg.all_reduce(np.array([pg.rank]))
            if pg.rank == 1:
                assert [int(total[0]), 2] == [4, 2]
            await pg.barrier()


        @spmd
        async def test_library(pg):
            await bad(pg)


        @spmd
        async def test_signal(pg):
            await pg.barrier()
            if pg.rank == 1:
                print("last words")
                os.kill(os.getpid(), signal.SIGSEGV)
            await pg.barrier()


        @spmd
        async def test_exit(pg):
            os._exit(0)


        @spmd
        async def test_lock(pg, lock):
            pass


        @spmd
        async def test_request(pg, request):
            pass


        @spmd(timeout=2)
        async def test_hang(pg):
            async def waits():
                await pg.recv(np.zeros(3), 1 - pg.rank)

            await asyncio.gather(waits(), asyncio.Event().wait())
    """,
    "tests/test_inside.py": """
        import asyncio

        import numpy as np

        import aiodist as dist


        def test_inside():
            async def main():
                async with dist.init_process_group(world_size=1) as pg:
                    await pg.all_reduce(np.ones(3), op="sum")

            asyncio.run(main())


        def test_portal():
            from aiodist import portal

            with portal.init_process_group(world_size=1) as pg:
                pg.all_reduce(np.ones(3), op="sum")
    """,
    "tests/test_long.py": """
        import asyncio

        from aiodist.testing import spmd


        @spmd
        async def test_long(pg):
            await pg.barrier()
            print("waits")
            if pg.rank:
                await asyncio.Event().wait()
            await pg.recv_object(1, tag=7)
    """,
    "tests/test_warns.py": """
        import asyncio
        import logging
        import warnings

        import pytest

        from aiodist.testing import spmd


        class Mine(UserWarning):
            pass


        @spmd
        async def test_warns(pg):
            warnings.warn("of ranks", Mine)
            asyncio.sleep(1)


        @pytest.mark.filterwarnings("ignore")
        @spmd
        async def test_ignores(pg):
            warnings.warn("of no interest", Mine)


        @spmd
        async def test_logs(pg, capfd):
            logging.getLogger("warns").info("of rank %d", pg.rank)
            assert capfd.readouterr() == ("", "")
            raise AssertionError


        @pytest.mark.filterwarnings("error")
        @spmd
        async def test_raises(pg):
            with pytest.raises(Mine):
                warnings.warn("an error", Mine)


        @pytest.mark.filterwarnings("error")
        @spmd
        async def test_forgets(pg):
            asyncio.sleep(1)
    """,
    "tests/test_stop.py": """
        from aiodist.testing import spmd


        @spmd
        async def test_break(pg):
            x = pg.rank * 10 + 7
            breakpoint()
            print("x is", x)
            await pg.barrier(timeout=0.5)


        @spmd
        async def test_raises(pg):
            x = pg.rank * 10 + 7
            if pg.rank == 1:
                raise ValueError("bad")
            await pg.barrier(timeout=0.5)
    """,
}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The library's folder."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.removeprefix("        ") for line in text.splitlines()[1:]) + "\n")
    return tmp_path


CHOSEN = "fixtures or method or compare"


def run(library: Path, *arguments: str, typed: str = "", program: tuple[str, ...] = ("-m", "pytest")) -> str:
    """What pytest prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    command = [sys.executable, *program, "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=library, env=env, input=typed, capture_output=True, text=True, timeout=250
    )
    assert not done.stderr, done.stderr
    return done.stdout


def parts(out: str) -> dict[str, str]:
    """What is said of each failed test, by its name."""
    found = re.split(r"^_{3,} (\S+) _{3,}$", out.partition("short test summary")[0], flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


@pytest.mark.slow(COSTLY)
def test_what_passes_and_what_failures_say(library: Path) -> None:
    out = run(library, "-q", "tests/test_good.py", "tests/test_bad.py")
    assert re.search(r"7 failed, 5 passed, 2 skipped, 2 xfailed", out), out
    told = parts(out)

    compare = told["test_compare"].splitlines()
    assert ">           assert [int(total[0]), 2] == [4, 2]" in compare
    assert "E           assert [3, 2] == [4, 2]" in compare
    assert "E             At index 0 diff: 3 != 4" in compare
    assert any(re.fullmatch(r"tests/test_bad.py:\d+: AssertionError", line) for line in compare)
    assert any(re.fullmatch(r"-+ rank 1 of 3: assert \[3, 2\] == \[4, 2\] -+", line) for line in compare)
    assert any(
        line.startswith("ranks 0 and 2: GroupAborted: rank 1 aborted the group (t") for line in compare
    )
    assert {f"rank {rank}: computing" for rank in range(3)} <= set(compare)
    assert "aiodist/" not in told["test_compare"], "no frame of the library"

    library_lines = told["test_library"].splitlines()
    assert library_lines.index(">       await bad(pg)") < library_lines.index(
        "E       ValueError: the batch is bad"
    )
    assert any(
        re.match(r"rank 1: ValueError: the batch is bad \(src/meanlib.py", one) for one in library_lines
    )

    assert "rank 1 of 2 was killed by SIGSEGV\nlast words\nFatal Python error" in told["test_signal"]
    assert re.search(r"rank 0: PeerLost: lost rank 1 \(tests/test_bad.py:\d+\)", told["test_signal"])
    assert re.search("rank . of 2 exited with 0 before its function had returned", told["test_exit"])
    for name, words in (
        ("lock", "the argument 'lock' (_thread.lock) cannot go to the processes of the ranks: cannot pickle"),
        ("request", "Ask `request` in a fixture, and pass on what it says"),
    ):
        [line] = told[f"test_{name}"].strip().splitlines()
        assert line.startswith(f"UsageError: test_{name}: ") and words in line

    hang = told["test_hang"].splitlines()
    assert hang[1].startswith("no end within 2 s: ranks 0 and 1 wait for each other")
    for rank in range(2):
        start = next(number for number, line in enumerate(hang) if line.startswith(f"rank {rank}, "))
        its = "\n".join(hang[start : start + 16])
        assert re.search(rf"recv #0 from {1 - rank} at test_bad.py:\d+ in waits is pending", its)
        assert re.search(r"Task-1: test_hang\n *tests/test_bad.py:\d+ in test_hang", its)
        assert f"awaits recv #0 from rank {1 - rank}" in its
        assert "Event.wait" in its
    assert "FAILED tests/test_bad.py::test_compare - rank 1 of 3: assert [3, 2] == [4, 2]" in out


@pytest.mark.slow(COSTLY)
def test_warnings_and_logs_of_ranks_are_filtered_and_told(library: Path) -> None:
    out = run(library, "-q", "--log-level=info", "tests/test_warns.py")
    assert "2 failed, 3 passed, 2 warnings" in out, out
    assert re.search(r"rank 1: INFO     warns:test_warns.py:\d+ of rank 1", parts(out)["test_logs"])
    assert "a store listens" not in out
    assert re.search(r"test_warns.py:\d+: Mine: of ranks\n *warnings.warn", out)
    assert re.search(r"test_warns.py:\d+: RuntimeWarning: coroutine 'sleep' was never awaited", out)
    assert "of no interest" not in out
    [first, *_] = parts(out)["test_forgets"].strip().splitlines()
    assert first == "ranks 0 and 1 of 2: RuntimeWarning: coroutine 'sleep' was never awaited"


@pytest.mark.slow(COSTLY)
def test_errors_of_the_library_end_at_the_users_frame(library: Path) -> None:
    told = parts(run(library, "-q", "tests/test_inside.py"))
    for name in ("test_inside", "test_portal"):
        assert "UsageError: op must be a ReduceOp" in told[name]
        assert "aiodist/group/" not in told[name] and "aiodist/portal" not in told[name]
    assert re.search(r'^> +pg.all_reduce\(np.ones\(3\), op="sum"\)$', told["test_portal"], re.M)
    assert "aiodist/group/" in run(library, "-q", "--full-trace", "tests/test_inside.py")


@pytest.mark.slow(COSTLY)
def test_ctrl_c_says_what_the_ranks_do(library: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-s", "tests/test_long.py"]
    with subprocess.Popen(
        command, cwd=library, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            while not (line := process.stdout.readline()).endswith("waits\n"):
                assert line
        process.send_signal(signal.SIGINT)
        out = process.stdout.read()
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "what the ranks did:" in out
    assert re.search(r"recv_object #0 from 1 at \S*test_long.py:\d+ in test_long is pending", out)
    assert re.search(r"rank 1, .*\n(.*\n)*.*test_long.py:\d+ in test_long", out)
    assert "KeyboardInterrupt" in out


@pytest.mark.parametrize("started", [True, False])
def test_a_limit_of_pytests_is_a_failure_that_says_what_the_ranks_did(
    started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def launch(*_: object, broken_off: Callable[[list[str]], object], **__: object) -> None:
        if started:
            broken_off(["rank 0 waits", "rank 1, too"])
        pytest.fail("Timeout (>8.0s) from pytest-timeout.")

    monkeypatch.setattr(running, "launch", launch)
    with pytest.raises(RanksFailed) as caught:
        never_begins()
    assert caught.value.title == "Timeout (>8.0s) from pytest-timeout."
    assert caught.value.rest == (("rank 0 waits", "rank 1, too") if started else ())


@spmd
async def never_begins(pg: object) -> None:
    """A test that a limit ends."""


@pytest.mark.slow("more runs of pytest: how tests are found, and in how many processes")
def test_workers_of_xdist_import_modes_and_tracebacks(library: Path) -> None:
    out = run(library, "-q", "-n", "2", "--import-mode=importlib", "tests", "-k", CHOSEN)
    assert "1 failed, 3 passed" in out
    assert "E           assert [3, 2] == [4, 2]" in parts(out)["test_compare"]
    out = run(library, "-q", "--tb=native", "-s", "tests/test_bad.py::test_compare")
    assert "1 failed" in out
    assert "rank 0: computing\n" in out.partition("FAILURES")[0]


@pytest.mark.slow("two runs of pytest under coverage")
def test_lines_that_ranks_run_are_covered(library: Path) -> None:
    program = ("-m", "coverage", "run", "--branch", "-m", "pytest")
    run(library, "-q", "tests/test_good.py", "-k", CHOSEN, program=program)
    report = subprocess.run(
        [sys.executable, "-m", "coverage", "report", "-m"], cwd=library, capture_output=True, text=True
    )
    assert re.search(r"src/meanlib.py +8 +0 +2 +0 +100%", report.stdout), report.stdout


@pytest.mark.slow("three runs of pytest")
def test_debugger_of_a_rank(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run(library, "-q", "--pdb", "tests/test_stop.py", typed="p x\nc\n" * 3)
    first, second = out.split("\nrank 1: ValueError: bad\n")
    assert {"(rank 0) 7", "(rank 1) 17"} <= set(first.splitlines()), "each has the terminal in its turn"
    assert "(rank 1) 17" in second.splitlines(), "where it was raised"
    assert "1 failed, 1 passed" in out and "(Pdb)" not in out
    out = run(library, "-q", "-n", "1", "tests/test_stop.py::test_break")
    assert "it runs in a worker of pytest-xdist: run it without -n" in out
    monkeypatch.setenv("AIODIST_BREAKPOINT", "1")
    out = run(library, "-q", "tests/test_stop.py::test_break", typed="p x\nc\n")
    assert "(rank 1) 17" in out and "(rank 0)" not in out and "1 passed" in out
