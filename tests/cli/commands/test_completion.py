"""Completion: what may stand in the place of a word, and that bash, zsh and fish ask for it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aiodist.base.errors
from aiodist.cli.commands.completion import SHELLS, parser_of
from aiodist.cli.main import COMMANDS, main
from aiodist.cli.offers import Offer, offers
from tests.levels import COSTLY

ROOT = Path(aiodist.__file__).parents[1]


def jobs() -> Iterator[Offer]:
    yield "a1b2", "train.py"
    yield "train.py", "train.py, the newest"


def words(line: str) -> list[str]:
    """The words that may stand in the place of a line's last one."""
    return [
        word for word, _ in offers(shlex.split(line) + [""] * line.endswith(" "), COMMANDS, parser_of, jobs)
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", list(COMMANDS)),
        ("do", ["doctor"]),
        ("help ex", ["explain"]),
        ("help run ", []),
        ("nothing ", []),
        ("run --max", ["--max-restarts"]),
        ("run --nproc-per", ["--nproc-per-node"]),  # not what is spelled with underscores
        ("run --nproc-per-node ", []),  # a number: the shell offers files
        ("run tr", []),  # a script: likewise
        ("run train.py --no", []),  # the script's own
        ("run --nproc-per-node 2 --log-d", ["--log-dir"]),
        ("run --nproc-per-node=2 --log-d", ["--log-dir"]),
        ("bench --only all_r", ["all_reduce"]),
        ("bench --only all_reduce barr", ["barrier"]),
        ("bench --only all_reduce --q", ["--quick"]),
        ("bench --only=all_r", ["--only=all_reduce"]),
        ("top ", ["a1b2", "train.py"]),
        ("top --every 2 tr", ["train.py"]),
        ("top train.py ", []),
        ("completion ", ["bash", "zsh", "fish"]),
        ("completion bash z", []),
    ],
)
def test_words(line: str, expected: list[str]) -> None:
    assert words(line) == expected


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_its_options_and_is_not_run(command: str) -> None:
    assert "--help" in words(f"{command} --")


def ask(shell: str, script: str, tmp_path: Path) -> list[str]:
    """Lines that a shell prints, with an `aiodist` that is this one."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    program = tmp_path / "aiodist"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m aiodist "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script.py").touch()
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "TERM": "dumb"}
    done = subprocess.run(
        [shell, "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


@pytest.mark.slow(COSTLY)
def test_bash(tmp_path: Path) -> None:
    """Words come as bash splits them, at '=' too; what is inserted is the part behind that."""
    script = """
    eval "$(aiodist completion bash)"
    complete -p aiodist
    words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _aiodist; echo "${COMPREPLY[*]}"; }
    words aiodist run --nno
    words aiodist bench --only = all_r
    words aiodist bench --only =
    words aiodist run scr
    """
    said = ask("bash", script, tmp_path)
    assert said[0] == "complete -o bashdefault -o default -F _aiodist aiodist"
    assert said[1:3] == ["--nnodes", "all_reduce"]
    assert "broadcast" in said[3].split()
    assert said[4:] == [""]  # bash goes on with files


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_others(shell: str, tmp_path: Path) -> None:
    if shell == "fish":
        script = """
        aiodist completion fish | source
        complete -C 'aiodist run --nno'
        complete -C 'aiodist run scr'
        """
        expected = ["--nnodes\tnodes in the job", "script.py"]
    else:
        script = """
        compdef() { print compdef $* }
        _describe() { print -rl -- ${(P)2} }
        _files() { print files }
        eval "$(aiodist completion zsh)"
        words=(aiodist run --nno); CURRENT=3; _aiodist
        words=(aiodist run scr); CURRENT=3; _aiodist
        """
        expected = ["compdef _aiodist aiodist", "--nnodes:nodes in the job", "files"]
    said = ask(shell, script, tmp_path)
    assert len(said) == len(expected)
    for line, beginning in zip(said, expected, strict=True):
        assert line.startswith(beginning)


def test_the_scripts_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == SHELLS[shell] + "\n"
    assert main(["completion", "csh"]) == 2
    assert "choose from" in capsys.readouterr().err
