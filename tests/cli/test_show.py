"""What a command prints has arrived, or it says why not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aiodist.cli.show import show

PROGRAM = "from aiodist.cli.show import show; show('x' * 10)"


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show("a line")
    assert capsys.readouterr().out == "a line\n"


def test_a_full_disk_is_one_typed_error() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "aiodist.AiodistError: cannot write to standard output: No space left on device"


def test_a_reader_that_has_gone_is_told_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
