"""A signal ends a benchmark in good order, also where the shell has it ignore Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

JOB = """
import signal, sys, time
from benchmarks.harness.command import run_main

def main(argv):
    try:
        print("begun", *argv, flush=True)
        time.sleep(60)
    finally:
        print("in order", flush=True)

signal.signal(signal.SIGINT, signal.SIG_IGN)
run_main(main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(number: signal.Signals) -> None:
    command = [sys.executable, "-c", JOB, "--quick"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun --quick\n"
        process.send_signal(number)
        said, complaint = process.communicate(timeout=20)
    assert (said, complaint, process.returncode) == ("in order\n", "interrupted\n", 130)
