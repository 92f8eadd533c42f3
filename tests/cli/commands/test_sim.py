"""`aiodist sim`: its output, its trace, its options; what is simulated is in tests/sim."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aiodist.cli.main import main
from aiodist.sim.constants import load, save
from tests.levels import COSTLY
from tests.observe.format import check

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "simulate_training.py")


def test_the_example_with_64_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    options = ["--network", "hosts=8x8,link=100Gbit/s:20us", "-o", str(trace), "--trace-ranks", "0-3,63"]
    assert main(["sim", EXAMPLE, *options, "--", "2"]) == 0
    said = capsys.readouterr().out
    assert "ms a step on 64 ranks" in said
    assert "64 ranks on 8 hosts, links of 100 Gbit/s and 20 µs" in said
    assert "all_reduce" in said and "slowest link" in said and "virtual time" in said
    made = json.loads(trace.read_text())
    check(made)
    spans = [
        event
        for event in made["traceEvents"]
        if event["ph"] == "X" and event["name"].startswith("all_reduce")
    ]
    assert len(spans) >= 5 * 2 * 4
    assert len({event["pid"] for event in spans}) == 5


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", EXAMPLE, "--ranks", "4", "--json", "--", "3"]) == 0
    said = capsys.readouterr()
    assert "a step on 4 ranks" in said.err
    found = json.loads(said.out)
    assert found["ranks"] == 4
    row = next(row for row in found["rows"] if row["operation"] == "all_reduce")
    assert row["count"] == 3 * 4 and row["bytes"] == 25 << 20
    assert 3 * (0.05 + 4 * 0.025) < found["virtual_seconds"] < 2.0
    assert {row["operation"] for row in found["rows"]} == {"all_reduce", "barrier"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "Give --ranks"),
        (["--ranks", "0"], "there has to be one"),
        (["--ranks", "4", "--network", "hosts=3"], "the network has 3 ranks"),
        (["--ranks", "4", "--straggler", "9:2"], "Ranks count from 0 to 3"),
        (["--ranks", "4", "--compute", "fast"], "Write none, measured"),
        (["--ranks", "4", "--print-ranks", "all"], "names no ranks"),
        (["--ranks", "4", "--constants", "/nowhere"], "cannot read '/nowhere'"),
    ],
)
def test_a_command_line_without_meaning(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", EXAMPLE, *options]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_script_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "/nowhere.py", "--ranks", "2"]) == 1
    assert "cannot read '/nowhere.py'" in capsys.readouterr().err


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        "import aiodist as dist\n"
        "async def main():\n"
        "    async with await dist.init_process_group() as pg:\n"
        "        if pg.rank == 0:\n"
        "            print('begun', flush=True)\n"
        "        while True:\n"
        "            await pg.barrier()\n"
        "dist.run(main())\n"
    )
    command = [sys.executable, "-m", "aiodist", "sim", str(script), "--ranks", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=60)
    assert "Traceback" not in said
    assert process.returncode in (128 + number, -number)


@pytest.mark.slow("measures for seconds")
def test_constants_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "constants.json"
    command = [sys.executable, "-m", "aiodist", "sim"]
    done = subprocess.run(
        [*command, "--calibrate", "-o", str(file)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = load(str(file))
    assert min(found.round, found.local, found.issue) > 0
    assert min(found.wake, found.message, found.byte, found.local_byte) >= 0  # what is left of a difference
    slow = tmp_path / "slow.json"
    save(replace(found, byte=1e-6), str(slow))
    times = []
    for name in (file, slow):
        options = [*command, EXAMPLE, "--ranks", "2", "--constants", str(name), "--json", "--", "1"]
        ran = subprocess.run(options, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        times.append(json.loads(ran.stdout)["virtual_seconds"])
    assert times[1] > times[0] + 25.0  # 25 MiB, at a µs a byte


def test_calibrating_takes_no_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", EXAMPLE, "--calibrate"]) == 2
    assert "Give it nothing but -o FILE" in capsys.readouterr().err
