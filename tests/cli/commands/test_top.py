"""`aiodist top`: in a terminal it shows a job until that ends or somebody leaves; in a pipe it looks once."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from aiodist.cli.main import main
from tests.cli.terminal import Terminal, terminal
from tests.observe.recorded import Rank, recording

pytest.importorskip("rich", reason="the view in the terminal needs rich")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")

MORE = pytest.mark.slow("more of the same: one terminal each")
HERE = """
import sys
from pathlib import Path
from aiodist.observe.recorder import records
records.SHARED_MEMORY = Path({folder!r})
from aiodist.cli.main import main
sys.exit(main(["top", *sys.argv[1:]]))
"""

Make = Callable[..., Rank]
Top = Callable[..., AbstractContextManager[Terminal]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    with recording(tmp_path, monkeypatch.setattr) as makes:
        yield makes


@pytest.fixture
def top(tmp_path: Path) -> Top:
    """Starts `aiodist top` in a terminal; it sees the ranks of `make`, and no others."""
    if shutil.which("setsid") is None:
        pytest.skip("needs the setsid command")

    def start(*argv: str, **more: int) -> AbstractContextManager[Terminal]:
        command = [sys.executable, "-c", HERE.format(folder=str(tmp_path)), "--every", "0.1", *argv]
        return terminal(command, **more)

    return start


def test_live_with_another_size_until_somebody_leaves(make: Make, top: Top) -> None:
    ranks = [make(0), make(1)]
    with top() as screen:
        assert "train.py" in screen.until("2 of 2 ranks")
        assert "epoch" in screen.until("all")
        ranks[1].wait(7, seconds=0.0)
        screen.until("all_reduce #7")
        screen.resize(60, 20)
        screen.shown = ""
        narrow = screen.until("all")
        assert max(map(len, re.split(r"[\r\n]+", narrow.rpartition("rank process")[2]))) <= 60
        screen.press(b"xyz")  # nothing
        screen.until("2 of 2 ranks")
        screen.press(b"q")
        rest = screen.rest()
        assert screen.process.wait() == 0
        assert "\x1b[?1049l" in rest and "\x1b[?25h" in rest  # the screen and the cursor are as before
        assert "Traceback" not in rest


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (b"\x03", 0),
        pytest.param(b"Q", 0, marks=MORE),
        pytest.param(b"\x1a\x03", 0, marks=MORE),  # Ctrl-Z does nothing
        pytest.param(signal.SIGTERM, 143, marks=MORE),
        pytest.param(signal.SIGINT, 0, marks=MORE),
    ],
)
def test_how_it_is_left(how: bytes | signal.Signals, code: int, make: Make, top: Top) -> None:
    make(0), make(1)
    with top() as screen:
        before = screen.attributes()
        screen.until("2 of 2 ranks")
        if isinstance(how, bytes):
            screen.press(how)
        else:
            screen.process.send_signal(how)
        rest = screen.rest()
        assert screen.process.wait() == code
        assert "\x1b[?1049l" in rest and "Traceback" not in rest
        local = before[3]
        assert isinstance(local, int) and local & termios.ECHO


@pytest.mark.slow("more of the same: one terminal each")
def test_a_job_that_ends(make: Make, top: Top) -> None:
    ranks = [make(0), make(1)]
    with top("train.py") as screen:
        screen.until("2 of 2 ranks")
        for rank in ranks:
            rank.memory.remove()
        rest = screen.rest()
        assert screen.process.wait() == 0
        assert rest.rstrip().endswith("the job has ended")
        assert "2 of 2 ranks" in rest.rpartition("\x1b[?1049l")[2]  # the last look stays


@pytest.mark.slow("more of the same: one terminal each")
def test_a_job_that_begins_later(make: Make, top: Top) -> None:
    with top() as screen:
        screen.until("no job of this user runs on this host: waiting for one (q leaves)")
        make(0)
        screen.until("1 of 2 ranks")
        screen.press(b"q")
        screen.rest()
        assert screen.process.wait() == 0


@pytest.mark.slow("more of the same: one terminal each")
def test_a_terminal_that_goes_ends_it(make: Make, top: Top) -> None:
    make(0), make(1)
    with top() as screen:
        screen.until("2 of 2 ranks")
        os.close(screen._handle)
        screen.process.wait(60)
        screen._handle = os.open(os.devnull, os.O_RDONLY)


def test_a_job_that_there_is_not(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make(0)
    assert main(["top", "other", "--once"]) == 2
    assert "there is no job 'other'. There are: " in capsys.readouterr().err


def test_there_is_none(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once"]) == 2
    assert "No job of this user runs on this host" in capsys.readouterr().err


def test_one_look_at_a_real_job(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", job, "--every", "0.2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{job}  job ") and "2 of 2 ranks" in lines[0]
    assert [line.split()[0] for line in lines[3:5]] == ["0", "1"]
    assert main(["top", job, "--json", "--every", "0.2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["script"], told["size"], len(told["rows"])) == (job, 2, 2)


@pytest.mark.parametrize("every", ["0", "-1", "inf", "nan"])
def test_seconds_that_are_none(every: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--every", every]) == 2
    assert "is not between 0.1 and infinity" in capsys.readouterr().err


def test_without_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["top"]) == 2
    assert "pip install 'aiodist[observe]'" in capsys.readouterr().err
