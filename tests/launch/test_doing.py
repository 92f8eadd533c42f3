"""What a process does, for the report."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aiodist.launch.doing import MOST, doing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")

PROGRAM = """
import asyncio, sys
import aiodist as dist

def deep(number):
    if number:
        return deep(number - 1)
    print("ready", flush=True)
    sys.stdin.read()

async def main():
    async with dist.init_process_group(world_size=1):
        deep(40)

asyncio.run(main())
"""


def test_its_stack_cut_where_it_is_long() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lines = doing(process.pid)
        process.communicate()
    assert any("in deep" in line for line in lines)
    assert len(lines) == MOST + 1 and "lines more" in lines[-1]


def test_a_process_that_records_nothing() -> None:
    assert doing(os.getppid()) == ()
