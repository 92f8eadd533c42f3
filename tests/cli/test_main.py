"""The `aiodist` command: dispatch, one-line errors, exit codes, and a start that is quick."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import aiodist.base.errors
from aiodist.cli.main import COMMANDS, main
from tests.levels import MORE, few

ROOT = Path(aiodist.__file__).parents[1]


def test_usage_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert main([]) == 2
    assert "usage: aiodist COMMAND" in capsys.readouterr().err


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    there_are = f"there are: {', '.join(COMMANDS)}"
    for name, more in (
        ("xyzzy", ""),
        ("lunch", ". Did you mean 'aiodist launch'?"),
        ("rnu", ". Did you mean 'aiodist run'?"),
        ("docter", ". Did you mean 'aiodist doctor'?"),
        ("runn", ". Did you mean 'aiodist run'?"),
        ("train.py", ". Did you mean 'aiodist run train.py'?"),
    ):
        assert main([name]) == 2
        text = f"aiodist: error: there is no command '{name}'; {there_are}{more}\n"
        assert capsys.readouterr().err == text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("aiodist ")


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--nproc-per-node", "0", __file__]) == 2
    assert capsys.readouterr().err == "aiodist run: error: --nproc-per-node must be at least 1, got 0\n"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([command, "--help"], ["help", command]):
        with pytest.raises(SystemExit) as info:
            main(argv)
        assert info.value.code == 0
        assert f"aiodist {command}" in capsys.readouterr().out


def test_env(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in list(os.environ):
        if name.startswith(("AIODIST_", "TORCHELASTIC_", "PET_")):
            monkeypatch.delenv(name)
    values = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "7",
        "AIODIST_SECRET": "hush",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    rows = dict(line.split(None, 1) for line in out.splitlines())
    assert (rows["rank"], rows["world_size"], rows["master_addr"]) == ("3", "4", "h")
    assert rows["secret"] == "set (AIODIST_SECRET)" and "hush" not in out
    assert rows["store"] == "none: rank 0 hosts it"
    monkeypatch.setenv("AIODIST_STORE", "etcd://me:hush@h:2379")
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert "etcd://…@h:2379" in out and "hush" not in out
    monkeypatch.setenv("RANK", "x")
    assert main(["env"]) == 2
    assert "RANK='x'" in capsys.readouterr().err


_PLACES = ("AIODIST_", "TORCHELASTIC_", "PET_", "SLURM_", "PMI_", "OMPI_", "RANK", "WORLD_SIZE", "MASTER_")


@pytest.mark.parametrize(
    ("more", "meets"),
    [
        (
            {},
            "nowhere, init_process_group() would be refused: MASTER_ADDR is not set, and the world has 2 "
            "processes. Start with `aiodist run`, or set MASTER_ADDR "
            "to rank 0's host and MASTER_PORT to a port",
        ),
        ({"MASTER_ADDR": "h"}, "nowhere, init_process_group() would be refused: MASTER_PORT is not set, and"),
        ({"MASTER_ADDR": "::1", "MASTER_PORT": "7"}, "at an address, [::1]:7"),
        ({"AIODIST_STORE": "etcd://me:hush@h:2379"}, "in etcd"),
        ({"WORLD_SIZE": "1"}, "alone"),
    ],
)
def test_env_says_where_the_processes_would_meet(
    more: dict[str, str], meets: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith(_PLACES)]:
        monkeypatch.delenv(name)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", **more}.items():
        monkeypatch.setenv(name, value)
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    rows = dict(line.split(None, 1) for line in out.splitlines())
    assert rows["meets"].startswith(meets) and "hush" not in rows["meets"]


def test_env_of_a_process_that_others_were_started_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list(os.environ):
        if name.startswith(("AIODIST_", "TORCHELASTIC_", "PET_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert main(["env"]) == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert rows["evidence"] == "no launcher that is known here has given it a rank"
    assert rows["others"].startswith("SLURM_STEP_NUM_TASKS=2: refused. ")


def test_store_serves_until_it_is_told_to_end() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "aiodist", "store", "--port", "0", "--job", "j"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    host, _, port = process.stdout.readline().strip().rpartition(":")
    assert host == "127.0.0.1" and int(port) > 0
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143


def test_store_without_secret_stays_on_loopback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AIODIST_SECRET", "AIODIST_SECRET_FILE", "AIODIST_ALLOW_INSECURE", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert main(["store", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "refused to serve 0.0.0.0 without a secret" in capsys.readouterr().err


def written_to(out: Any, argv: Sequence[str], **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose standard output is a file."""
    return subprocess.run(
        [sys.executable, "-m", "aiodist", *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )


PRINTING = [
    ["env"],
    pytest.param(["doctor", "--limit", "60"], marks=pytest.mark.slow(MORE)),
    ["store", "--port", "0"],
    pytest.param(["--version"], marks=pytest.mark.slow(MORE)),
    ["help"],
    pytest.param(["env", "--help"], marks=pytest.mark.slow(MORE)),
]


@pytest.mark.parametrize("unbuffered", few(["", "1"], [""]))
@pytest.mark.parametrize("argv", PRINTING, ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(argv: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = written_to(full, argv, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    who = "aiodist" if argv[0] in ("--version", "help") else f"aiodist {argv[0]}"
    assert done.stderr == f"{who}: error: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("unbuffered", few(["", "1"], [""]))
@pytest.mark.parametrize(
    "argv", few([["env"], ["store", "--port", "0"]], [["store", "--port", "0"]]), ids=" ".join
)
def test_reader_that_has_gone_is_told_nothing(argv: list[str], unbuffered: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = written_to(theirs, argv, PYTHONUNBUFFERED=unbuffered)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_the_launcher_needs_no_numpy() -> None:
    """Its start-up time is the job's start-up time."""
    code = (
        "import sys, aiodist.launch.agent, aiodist.cli.commands.run, aiodist.rendezvous.client\n"
        "print([m for m in ('numpy', 'ml_dtypes', 'torch', 'uvloop') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("closed", few(["<&-", ">&-", "2>&-", "<&- >&- 2>&-"], ["<&- >&- 2>&-"]))
def test_standard_descriptors_that_are_closed(closed: str, tmp_path: Path) -> None:
    """What is opened next would get their numbers, and take what is meant for them."""
    code = (
        "import os, sys; from aiodist.cli.main import main\n"
        "main(['--version']); main(['launch'])\n"
        "sys.stdout.write('x'); sys.stderr.write('x'); sys.stdin.read()\n"
        "assert os.open('/dev/null', os.O_RDONLY) > 2\n"
        "open(sys.argv[1], 'w').close()"
    )
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code, str(tmp_path / "said")]
    subprocess.run(
        shell, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60
    )
    assert (tmp_path / "said").exists()
