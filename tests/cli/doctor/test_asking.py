"""Processes that are asked: libraries that print, crash, hang, or leave something running."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiodist.cli.doctor import cupy, driver, mpi
from aiodist.cli.doctor.topic import ProcessAnswer
from tests.cli.doctor.asks import ask, fake


def test_what_a_library_prints_is_not_its_answer(tmp_path: Path) -> None:
    code = (
        "print('welcome to cupy'); import os; os.write(1, b'{}'); raise ImportError('libfoo.so: not there')"
    )
    answer = ask(cupy.examine, PYTHONPATH=fake(tmp_path, "cupy", code))
    assert answer == ProcessAnswer(trouble="ImportError: libfoo.so: not there")


def test_a_library_that_is_not_here(tmp_path: Path) -> None:
    code = "raise ModuleNotFoundError('No module named mpi4py', name='mpi4py')"
    assert ask(mpi.examine, PYTHONPATH=fake(tmp_path, "mpi4py", code)).absent == "mpi4py"


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was killed by SIGSEGV"),
        ("import os, sys; sys.stderr.write('no driver\\n'); sys.stderr.flush(); os._exit(3)", "code 3"),
        ("import os; os._exit(0)", "ended with exit code 0 and said nothing"),
    ],
)
def test_a_library_that_ends_the_process(tmp_path: Path, code: str, word: str) -> None:
    answer = ask(cupy.examine, PYTHONPATH=fake(tmp_path, "cupy", code))
    assert word in answer.trouble and not answer.facts
    assert ("no driver" in answer.trouble) == ("no driver" in code)


def test_a_library_that_hangs(tmp_path: Path) -> None:
    path = fake(tmp_path, "cupy", "import signal\nwhile True: signal.pause()")
    assert ask(cupy.examine, limit=0.5, PYTHONPATH=path) == ProcessAnswer(trouble="no answer within 0.5 s")


def test_what_a_library_leaves_running_is_ended(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = (
        "import subprocess\n"
        f"out = open({str(fifo)!r}, 'w')\n"
        "print('x', file=out, flush=True)\n"
        "subprocess.Popen(['sleep', '600'], stdout=out)\n"
        "raise ImportError('y')\n"
    )
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert ask(cupy.examine, PYTHONPATH=fake(tmp_path, "cupy", code)) == ProcessAnswer(
            trouble="ImportError: y"
        )
        os.set_blocking(reader, True)
        assert os.read(reader, 10) == b"x\n"
        assert os.read(reader, 10) == b""  # once everybody who could write is gone
    finally:
        os.close(reader)


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    assert "no process can be started" in ask(driver.examine).trouble
