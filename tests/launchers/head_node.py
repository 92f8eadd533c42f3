"""`aiodist launch` over a real ssh: what it says of a host that is not well, and who can see the secret."""

from __future__ import annotations

import re
import shutil
import sys
import unittest
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.launchers.case import Commands
from tests.launchers.cases.ours import launch_two, launch_via_mpirun, launch_via_srun
from tests.launchers.found import check
from tests.launchers.ground import Ground
from tests.launchers.jobs import run

# Of host b alone, in place of the interpreter: none, one without aiodist, one with another aiodist.
_INTERPRETERS = {
    "gone": "exec /no/python",
    "bare": 'exec {python} -S "$@"',
    "old": (
        "exec {python} -c 'from aiodist.cli.commands import agent; "
        'agent.installed_version = lambda: "0.0.1"; agent.main()\''
    ),
}
_LOOKS = """
import os
from pathlib import Path

secret = os.environ["AIODIST_SECRET"].encode()
seen = 0
for path in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        words = path.read_bytes()
    except OSError:
        continue
    seen += secret in words or b"given a b'c" in words.partition(b"aiodist\\0launch")[0]
names = ("GIVEN", "HANDED", "OMP_HANDED", "NCCL_HANDED", "AIODIST_HANDED")
print(f"< {len(secret)} {seen}", *(os.environ.get(name, "-") for name in names), ">")
"""
_HANDED = dict.fromkeys(("HANDED", "OMP_HANDED", "NCCL_HANDED", "AIODIST_HANDED"), "1")


def rows(ground: Ground) -> Iterator[tuple[str, str]]:
    """What is looked at, and what came of it; a cell with '**' is wrong."""
    for name, words, said in _unwell(ground):
        yield f"a host {name}", _refused(ground, words, said)
    for name, make in (("ssh", launch_two), ("srun", launch_via_srun), ("mpirun", launch_via_mpirun)):
        yield f"the secret and the variables, by {name}", _seen(ground, make)


def _unwell(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """What is wrong with host b, the options that make it so, and a pattern of what is said."""
    (a, b), folder = ground.hosts, ground.folder / "unwell"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    both, ssh = ["-H", f"{a},{b}"], ["--ssh", ground.ssh]
    key, known = folder / "key", folder / "known"
    check("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    known.write_text(f"{b} {' '.join(key.with_suffix('.pub').read_text().split()[:2])}\n")
    login = _client(folder / "login", key, folder / "new")
    changed = _client(folder / "changed", ground.sshd.folder / "key", known)
    yield "whose name does not resolve", ["-H", f"{a},nodex", *ssh], "nodex: nobody knows the name"
    yield "that is not there", ["-H", f"{a},10.78.0.77", *ssh], "10.78.0.77: no route leads there"
    yield "without sshd", [*both, "--ssh", f"{ground.ssh} -p 2222"], f"{b}: no ssh server listens there"
    yield "that does not know our key", [*both, "--ssh", login], f"{b}: it refuses this login"
    yield "whose own key is another", [*both, "--ssh", changed], f"{b}: its key is not the known one"
    python = str(ground.environment("plain") / "python")
    for name, title, said in (
        ("gone", "without the interpreter", f"{b}: there is no "),
        ("bare", "without aiodist", f"{b}: .* has no aiodist"),
        ("old", "with another version", f"{b} has aiodist 0.0.1, and this host "),
    ):
        path = folder / name
        there = _INTERPRETERS[name].format(python=python)
        path.write_text(f'#!/bin/sh\n[ "$(hostname)" = {b} ] && {there}\nexec {python} "$@"\n')
        path.chmod(0o755)
        yield title, [*both, *ssh, "--python", str(path)], said
    yield "without the folder", [*both, *ssh, "--chdir", "/no/folder"], "there is no folder /no/folder on it"


def _client(path: Path, key: Path, known: Path) -> str:
    """A command line of ssh that shows this key, and keeps those of hosts there."""
    path.write_text(
        f"IdentityFile {key}\nIdentitiesOnly yes\nUserKnownHostsFile {known}\n"
        "StrictHostKeyChecking accept-new\nLogLevel ERROR\n"
    )
    return f"ssh -F {path}"


def _refused(ground: Ground, words: list[str], said: str) -> str:
    """Launch with these options → what is said of the host, with code 1, before a worker starts."""
    started = ground.folder / "unwell" / "started"
    started.unlink(missing_ok=True)
    script = ground.folder / "starts.py"
    script.write_text(f"open({str(started)!r}, 'w').close()\n")
    a, _ = ground.hosts
    line = [str(ground.environment("plain") / "aiodist"), "launch", *words, str(script)]
    done = run(Commands([ground.on(a, *line)]), ground)
    lines = [one for one in done.text.splitlines() if "waiting for" not in one]
    right = done.code == 1 and all(re.search(said, one) for one in lines) and lines and not started.exists()
    shown = f"`{lines[0].replace('error: ', '')}`" if lines else "nothing"
    return f"{shown}, {done.seconds:.1f} s" if right else f"**code {done.code}: {done.text[-300:]!r}**"


def _seen(ground: Ground, make: Callable[..., Commands]) -> str:
    script = ground.folder / "looks.py"
    script.write_text(_LOOKS)
    words = ["-x", "GIVEN=given a b'c", "-x", "HANDED", str(script)]
    try:
        commands = make(ground, words)
    except unittest.SkipTest as reason:
        return f"not run: {reason}"
    env = {name: value for name, value in commands.env.items() if name != "AIODIST_SECRET"}
    done = run(replace(commands, env={**env, **_HANDED}), ground)
    found = re.findall(r"< (.*) >", done.text)
    right = done.code == 0 and found == ["64 0 given a b'c 1 1 1 1"] * 4
    print(done.text[-2000:] if not right else "", file=sys.stderr)
    return "in no command line; all came" if right else f"**code {done.code}: {found}**"
