"""`aiodist launch`: agents on several hosts, by a stand-in for ssh that starts them on this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.base.errors import UsageError
from tests.levels import COSTLY, MORE, few
from tests.processes import run_to_end

ROOT = Path(__file__).parents[2]
HELLO = str(ROOT / "examples" / "hello.py")
SSH = str(Path(__file__).parent / "fake_ssh.sh")
PATIENCE = 100.0
SIGNALS = [signal.SIGINT, signal.SIGTERM]
LINE = re.compile(r"rank (\d+) of (\d+): local rank (\d+) of (\d+), node (\d+) of (\d+)")
pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]

FAILS = """
import sys
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        await pg.barrier()
        if pg.rank == 2:
            print("last words", file=sys.stderr)
            sys.exit(7)
        await pg.barrier()

dist.run(main())
"""
STAYS = """
import os, time
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        print(f"<{os.getpid()}>", flush=True)
        await pg.recv_object((pg.rank + 1) % pg.size, tag=9)

dist.run(main())
"""
FLOOD = """
while True:
    print("x" * 1000, flush=True)
"""
LINES = """
import os

rank = os.environ["RANK"]
for n in range(1500):
    print(rank, n, "x" * (n % 300) + ".", flush=n % 7 == 0)
"""
LOOKS = """
import os
from pathlib import Path

secret = os.environ["AIODIST_SECRET"]
seen = []
for path in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        seen.append(path.read_bytes().decode(errors="replace"))
    except OSError:
        pass
told = any(secret in words or "a b'c" in words.partition("launch")[0] for words in seen)

names = [os.environ.get(name, "-") for name in ("GIVEN", "HANDED", "OMP_HANDED", "KEPT")]

print("<", len(secret) >= 32, told, *names, os.getcwd(), ">")
"""


def command(hosts: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "aiodist", "launch", "-H", hosts, "--ssh", SSH, *words]


def environ(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIODIST_", "RANK"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def run(hosts: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run_to_end(command(hosts, *words), environ(**more), PATIENCE)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


@pytest.mark.slow(COSTLY)
def test_two_hosts_are_two_nodes_of_one_job() -> None:
    ended = run("a:2,user@b.cluster:1", HELLO)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = [tuple(map(int, match.groups())) for match in LINE.finditer(ended.stdout)]
    assert found == [(0, 3, 0, 2, 0, 2), (1, 3, 1, 2, 0, 2), (2, 3, 0, 1, 1, 2)]
    assert all(line.startswith("a:0│ ") for line in ended.stdout.splitlines())
    assert ended.stderr == ""


@pytest.mark.slow(COSTLY)
def test_the_first_failure_is_named_once_and_its_code_returned(script: Path) -> None:
    script.write_text(FAILS)
    ended = run("a:2,b:2", str(script))
    assert ended.returncode == 7, ended.stdout + ended.stderr
    boxes = [line for line in ended.stderr.splitlines() if line.startswith("╭")]
    assert len(boxes) == 1 and "aiodist launch: rank 2 failed first" in boxes[0]
    assert re.search(r"exit code 7 after .* host b, local rank 0", ended.stderr)
    assert "│ last words" in ended.stderr


@pytest.mark.slow(COSTLY)
def test_variables_arrive_and_no_command_line_has_them(script: Path) -> None:
    script.write_text(LOOKS)
    words = ("-x", "GIVEN=a b'c", "-x", "HANDED", "--chdir", str(script.parent), str(script))
    ended = run("a,b", *words, HANDED="1", OMP_HANDED="2", KEPT="3")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = re.findall(r"< (.*) >", ended.stdout)
    assert said == [f"True False a b'c 1 2 - {script.parent}"] * 2


NOT_WELL = [
    ("closed", "closed: it refuses this login. Give it your public key: ssh-copy-id closed"),
    ("gone", "gone: no ssh server listens there. Start sshd on it"),
    ("nobody", "nobody: nobody knows the name"),
    ("changed", "changed: its key is not the known one"),
    ("bare", "bare: PYTHON has no aiodist. Install it there: PYTHON -m pip install aiodist"),
    ("old", "old has aiodist 0.0.1, and this host VERSION. Install the same on every host"),
]


@pytest.mark.parametrize(("host", "said"), few(NOT_WELL, NOT_WELL[::5]))
def test_what_is_wrong_with_a_host_is_said_before_anything_starts(host: str, said: str, script: Path) -> None:
    script.write_text(f"open({str(script.parent / 'started')!r}, 'w')")
    old = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "from aiodist.cli.commands import agent; agent.installed_version = lambda: '0.0.1'; agent.main()"
    )
    agent = shlex.join([sys.executable, "-c", old, str(ROOT)])
    ended = run(f"a,{host}", str(script), OLD_AGENT=agent)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = said.replace("PYTHON", sys.executable)
    expected = re.escape(f"aiodist launch: error: {said}").replace("VERSION", r"\S+")
    assert re.match(expected, ended.stderr), ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (script.parent / "started").exists()


@pytest.mark.slow(COSTLY)
def test_another_interpreter_or_folder_that_is_not_there() -> None:
    ended = run("a,b", "--python", "/no/python", HELLO)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 2)
    for host in "ab":
        assert f"{host}: there is no /no/python. Name the interpreter there with --python" in ended.stderr
    ended = run("a,b", "--chdir", "/no/folder", HELLO)
    assert ended.returncode == 1
    assert "there is no folder /no/folder on it" in ended.stderr


def test_all_hosts_that_are_not_well_are_named_at_once() -> None:
    ended = run("a,closed,gone", HELLO)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 2
    assert "closed: it refuses this login" in ended.stderr
    assert "gone: no ssh server listens there" in ended.stderr


def test_every_host_that_is_silent_is_named() -> None:
    ended = run("silent,other-silent", "--start-timeout", "0.1", HELLO)
    assert ended.returncode == 1
    said = ended.stderr.splitlines()
    for line, host in zip(said, ("silent", "other-silent"), strict=True):
        assert line.startswith(f"aiodist launch: error: no agent on {host} said a word within 0.1 s. ")
        assert f"`ssh {host} true`" in line


def test_a_signal_ends_the_wait_for_a_host_that_is_silent() -> None:
    words = ["-H", "a,silent", "--ssh", SSH, "--start-timeout", "1000", HELLO]
    job = started([sys.executable, "-m", "aiodist", "launch", *words])
    try:
        assert job.stdout is not None
        assert "waiting for silent; 1 of 2 are here" in job.stdout.readline()
        job.send_signal(signal.SIGUSR1)  # which is for workers, and there are none
        job.send_signal(signal.SIGINT)
        said, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 128 + signal.SIGINT
        assert said == "aiodist launch: stopped by SIGINT before the job began\n"
    finally:
        job.kill()
        job.communicate()


@pytest.mark.slow(COSTLY)
def test_what_a_login_leaves_behind_holds_up_nobody() -> None:
    """A process there holds the pipes of ssh; it lives for longer than this test may take."""
    ended = run("a,lingering", HELLO)
    assert ended.returncode == 0, ended.stderr
    for pid in re.findall(r"left (\d+)", ended.stdout + ended.stderr):
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow(COSTLY)
def test_a_hostfile_of_all_dialects_and_its_filters(script: Path) -> None:
    """Open MPI's, DeepSpeed's and Horovod's line, Hydra's, a login; and what the workers are given of it."""
    script.write_text(
        "import os\nprint(*(os.environ.get(name, 'all') for name in ('LOCAL_RANK', 'LOCAL_WORLD_SIZE', "
        "'WORLD_SIZE', 'CUDA_VISIBLE_DEVICES')))"
    )
    hosts = script.parent / "hosts"
    hosts.write_text("a slots=2 max_slots=8  # two\nb:3\nuser@c slots=1\nd slots=2\n")
    words = [sys.executable, "-m", "aiodist", "launch", "--hostfile", str(hosts), "--ssh", SSH]

    def said(*more: str) -> list[str]:
        environs = {name: value for name, value in environ().items() if name != "CUDA_VISIBLE_DEVICES"}
        ended = run_to_end([*words, *more, str(script)], environs, PATIENCE)
        assert ended.returncode == 0, ended.stderr
        return sorted(ended.stdout.splitlines())

    assert said("--include", "c@b:0,2") == ["b:0│ 0 2 3 0,2", "b:1│ 1 2 3 0,2", "c:2│ 0 1 3 all"]
    assert said("--exclude", "d@c@b:0@a:1") == ["a:0│ 0 1 3 0", "b:1│ 0 2 3 1,2", "b:2│ 1 2 3 1,2"]


@pytest.mark.slow(COSTLY)
def test_options_of_workers_are_judged_by_the_hosts_numbers(script: Path) -> None:
    script.write_text("import os\nprint('local', os.environ['LOCAL_RANK'])")
    ended = run("a:3,b:1", "--local-ranks-filter", "0", str(script))
    assert ended.returncode == 0, ended.stderr
    ended = run("a:3", "--local-ranks-filter", "1,2", str(script))
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["a:1│ local 1", "a:2│ local 2"]


@pytest.mark.slow(COSTLY)
def test_variables_of_this_environment_are_not_read_again(script: Path) -> None:
    """On a host that is this one the agent has them all."""
    script.write_text(FAILS.replace("pg.rank == 2", "pg.rank == 0"))
    ended = run("localhost:2", "--max-restarts", "0", str(script), PET_MAX_RESTARTS="3")
    assert ended.returncode == 7
    assert "restart" not in ended.stderr


def test_a_secret_that_is_no_text(script: Path) -> None:
    script.write_bytes(b"\xff\xfe" * 16)
    script.chmod(0o600)
    ended = run("a", HELLO, AIODIST_SECRET_FILE=str(script))
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "the job's secret is not text" in ended.stderr


WITHOUT_MEANING = [
    (["-H", "a", "--nnodes", "3:2", HELLO], "--nnodes 3:2 is not valid"),
    (["-H", "a", "--via", "srun", "--ssh", "other", HELLO], "--ssh cannot be used with --via srun"),
    (["-H", "a:x", HELLO], "'x' is no number of workers"),
    ([HELLO], "no hosts given"),
    (["-H", "a", "/no/script.py"], "there is no script '/no/script.py'"),
    (["-H", "a", "--no-such", HELLO], "there is no option --no-such"),
    (["-H", "a", "-x", "NOT_SET_HERE", HELLO], "NOT_SET_HERE is not set here"),
    (["-H", "a", "--exclude", "a", HELLO], "no host is left"),
    (["-H", "a", "--via", "magic", HELLO], "--via magic has no meaning"),
]


@pytest.mark.parametrize(("words", "said"), few(WITHOUT_MEANING, [WITHOUT_MEANING[2], WITHOUT_MEANING[5]]))
def test_command_lines_without_meaning(words: list[str], said: str) -> None:
    ended = run_to_end([sys.executable, "-m", "aiodist", "launch", *words], environ(), PATIENCE)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1), ended.stderr
    assert said in ended.stderr


def started(line: list[str]) -> subprocess.Popen[str]:
    """A launcher whose stdout and stderr are one pipe."""
    return subprocess.Popen(
        line,
        env=environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@contextlib.contextmanager
def staying(script: Path, *before: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A job of four workers on two hosts that goes on for ever, and descriptors of their processes."""
    script.write_text(STAYS)
    job = started([*before, *command("a:2,b:2", str(script))])
    pidfds: list[int] = []
    try:
        assert job.stdout is not None
        while len(pidfds) < 4:
            line = job.stdout.readline()
            assert line, "it ended"
            pidfds += [os.pidfd_open(int(pid)) for pid in re.findall(r"<(\d+)>", line)]
        yield job, pidfds
    finally:
        with contextlib.suppress(ProcessLookupError):
            job.kill()
        job.communicate()
        for pidfd in pidfds:
            os.close(pidfd)


@pytest.mark.slow(COSTLY)
def test_a_host_that_goes_is_left_and_an_excluded_one_never_comes(script: Path) -> None:
    """The job begins again, on those that are there; --exclude holds for what comes later, too."""
    script.write_text(STAYS)
    hosts = script.parent / "hosts"
    hosts.write_text("a\nb\nc\n")
    words = ["--ssh", SSH, "--host-discovery-script", f"cat {hosts}", "--exclude", "c", "--nnodes", "1:3"]
    words += ["--max-restarts", "3", str(script)]
    job = started([sys.executable, "-m", "aiodist", "launch", *words])
    seen: list[str] = []
    try:
        assert job.stdout is not None

        def until(pattern: str) -> None:
            assert job.stdout is not None
            while True:
                line = job.stdout.readline()
                assert line, seen
                seen.append(line)
                if re.search(pattern, line):
                    return

        until(r"^b:\d│ <")
        hosts.write_text("a\nc\n")
        until("b is no host of the job any more")
        until(r"^a:0│ <")
        job.send_signal(signal.SIGTERM)
        said, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 128 + signal.SIGTERM, (seen, said)
        assert not any(line.startswith("c:") for line in [*seen, *said.splitlines()])
    finally:
        with contextlib.suppress(ProcessLookupError):
            job.kill()
        job.communicate()


ON_AND_ON = """
import os
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        print(f"<{pg.rank} of {pg.size}>", flush=True)
        while True:
            await pg.barrier()

dist.run(main())
"""


@pytest.mark.slow("a host that failed is left alone for half a minute")
def test_a_host_that_dies_comes_again_and_a_new_one_comes(script: Path) -> None:
    script.write_text(ON_AND_ON)
    hosts = script.parent / "hosts"
    hosts.write_text("a\nb\n")
    words = ["--ssh", SSH, "--host-discovery-script", f"cat {hosts}", "--nnodes", "1:3"]
    job = started([sys.executable, "-m", "aiodist", "launch", *words, "--max-restarts", "1", str(script)])
    seen: list[str] = []

    def until(*texts: str) -> None:
        """Read on until each of these lines was there."""
        assert job.stdout is not None
        left = set(texts)
        while left:
            line = job.stdout.readline()
            assert line, seen
            seen.append(line)
            left.discard(line.rstrip())

    try:
        until("a:0│ <0 of 2>", "b:1│ <1 of 2>")
        agents = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(agents[1]), signal.SIGKILL)
        until("aiodist launch: b: its agent is gone (killed by SIGKILL)", "a:0│ <0 of 1>")
        until("aiodist launch: b is a new host", "a:0│ <0 of 2>", "b:1│ <1 of 2>")
        hosts.write_text("c\na\nb\n")
        until("aiodist launch: c is a new host", "a:0│ <0 of 3>", "b:1│ <1 of 3>", "c:2│ <2 of 3>")
        job.send_signal(signal.SIGTERM)
        said, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 128 + signal.SIGTERM, (seen, said)
    finally:
        job.kill()
        job.communicate()


@pytest.mark.slow("hosts are looked for again only after seconds")
def test_a_host_that_goes_before_the_job_began_takes_nobody_with_it(script: Path) -> None:
    """The job waits for a third host; one of the two that wait goes, and two others come."""
    script.write_text("import os; print('<', os.environ['WORLD_SIZE'], '>')")
    hosts = script.parent / "hosts"
    hosts.write_text("a\nb\n")
    words = ["--ssh", SSH, "--host-discovery-script", f"cat {hosts}", "--nnodes", "3:3", str(script)]
    job = started([sys.executable, "-m", "aiodist", "launch", *words])
    seen = ""
    try:
        assert job.stdout is not None
        while "waiting for" not in seen:  # both are there, and met
            seen += job.stdout.readline()
        hosts.write_text("a\n")
        while "b is no host of the job any more" not in seen:
            seen += job.stdout.readline()
        hosts.write_text("a\nc\nd\n")
        said, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, seen + said
        assert (seen + said).count("< 3 >") == 3
    finally:
        job.kill()
        job.communicate()


def test_a_discovery_script_may_leave_nothing_behind(script: Path, tmp_path: Path) -> None:
    """What it has started and holds its output is not waited for, and ended."""
    from aiodist.launch.remote import discovery

    script.write_text(f"#!/bin/sh\necho a:2\nsleep 1000 & echo $! > {tmp_path}/pid\n")
    script.chmod(0o755)
    assert [host.name for host in asyncio.run(discovery.hosts_now(str(script)))] == ["a"]
    assert has_ended(int((tmp_path / "pid").read_text()))


def has_ended(pid: int) -> bool:
    """Whether a process, which may be gone and another's number by now, ends within the test's limit."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return all_end([pidfd])
    finally:
        os.close(pidfd)


def test_a_discovery_script_that_hangs_is_ended_with_its_children(script: Path, tmp_path: Path) -> None:
    script.write_text("import os; os.system('echo $$ > %s; sleep 1000')" % (tmp_path / "pid"))
    from aiodist.launch.remote import discovery

    async def ask() -> None:
        with pytest.raises(UsageError, match="takes longer than"):
            await discovery.hosts_now(f"{sys.executable} {script}")

    before, discovery._PATIENCE = discovery._PATIENCE, 2.0
    try:
        asyncio.run(ask())
    finally:
        discovery._PATIENCE = before
    assert has_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.slow(COSTLY)
def test_a_signal_that_was_ignored_stays_ignored(script: Path) -> None:
    with staying(script, "nohup") as (job, pidfds):
        job.send_signal(signal.SIGHUP)
        job.send_signal(signal.SIGTERM)
        said, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 128 + signal.SIGTERM, said
        assert all_end(pidfds)


@pytest.mark.slow(COSTLY)
def test_who_reads_nothing_more_holds_up_nobody_who_is_to_end(script: Path) -> None:
    script.write_text(FLOOD)
    job = subprocess.Popen(
        command("a:1,b:1", str(script)), env=environ(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert job.stdout is not None
        assert b"x" in os.read(job.stdout.fileno(), 4096)
        for _ in range(3):
            job.send_signal(signal.SIGINT)
        assert job.wait(PATIENCE) == 128 + signal.SIGINT
    finally:
        job.kill()
        job.communicate()


@pytest.mark.slow(COSTLY)
def test_lines_stay_whole_under_a_flood(script: Path) -> None:
    script.write_text(LINES)
    ended = run("a:2,b:2", str(script))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    expected = {f"{host}:{rank}│ {rank} {n} {'x' * (n % 300)}." for host, rank, n in _numbered()}
    assert set(lines) == expected and len(lines) == len(expected)


def _numbered() -> Iterator[tuple[str, int, int]]:
    for rank in range(4):
        for n in range(1500):
            yield ("a", "b")[rank // 2], rank, n


def all_end(pidfds: list[int]) -> bool:
    """Whether all of these processes end, within the test's limit."""
    left = set(pidfds)
    while left:
        ready, _, _ = select.select(left, [], [], PATIENCE)
        if not ready:
            return False
        left -= set(ready)
    return True


SAVES = """
import os, signal
import aiodist as dist

saved = 0

def save(*_):
    global saved
    saved += 1
    import time
    time.sleep(0.5)
    print(f"saved {saved}", flush=True)
    os._exit(0)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, save)

async def main():
    async with await dist.init_process_group() as pg:
        print(f"<{os.getpid()}>", flush=True)
        await pg.recv_object((pg.rank + 1) % pg.size, tag=9)

dist.run(main())
"""


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("number", few(SIGNALS, [signal.SIGTERM]))
def test_one_signal_is_one_wish_on_every_host(number: signal.Signals, script: Path) -> None:
    """It comes to an agent from the launcher, and from the first agent that has it; neither is a second."""
    script.write_text(SAVES)
    job = started(command("a:1,b:1,c:1", str(script)))
    try:
        assert job.stdout is not None
        for _ in range(3):
            assert "<" in job.stdout.readline()
        job.send_signal(number)
        said, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 128 + number, said
        assert said.count("saved 1") == 3, said
        assert "had to be killed" not in said
    finally:
        job.kill()
        job.communicate()


@pytest.mark.slow(COSTLY)
def test_usr1_is_for_the_workers_of_every_host(script: Path) -> None:
    """It ends nobody but who means to end by it; these do, and well."""
    script.write_text(SAVES)
    job = started(command("a:1,b:1", str(script)))
    try:
        assert job.stdout is not None
        for _ in range(2):
            assert "<" in job.stdout.readline()
        job.send_signal(signal.SIGUSR1)
        said, _ = job.communicate(timeout=PATIENCE)
        assert (job.returncode, sorted(said.splitlines())) == (0, ["a:0│ saved 1", "b:1│ saved 1"])
    finally:
        job.kill()
        job.communicate()


@pytest.mark.slow(MORE)
def test_an_agent_that_is_stopped_is_lost_and_the_verdict_comes(script: Path) -> None:
    with staying(script) as (job, pidfds):
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        agent = os.pidfd_open(int(children[1]))
        try:
            os.kill(int(children[1]), signal.SIGSTOP)
            said, _ = job.communicate(timeout=PATIENCE)
            assert job.returncode == 1, said
            assert "node 1 was lost" in said
        finally:
            with contextlib.suppress(ProcessLookupError):  # no ssh is between: it was ended
                signal.pidfd_send_signal(agent, signal.SIGKILL)
            os.close(agent)
        assert all_end(pidfds)


@pytest.mark.slow(COSTLY)
def test_large_and_odd_variables_arrive(script: Path) -> None:
    script.write_text(
        "import os; print('<', len(os.environ['BIG']), os.fsencode(os.environ['ODD']), "
        "os.environ['LINES'].count(chr(10)), '>')"
    )
    more = {f"NCCL_{n}": "é" * 50_000 for n in range(8)}
    words = ("-x", "BIG", "-x", "ODD", "-x", "LINES")
    ended = run("a,b", *words, str(script), BIG="x" * 100_000, ODD="\udcff", LINES="1\n2\n", **more)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("< 100000 b'\\xff' 2 >") == 2


LIES = """
import json, sys
from aiodist.cli.version import installed_version

def say(name, **values):
    sys.stdout.write("\\x1e" + json.dumps([name, values]) + "\\n")
    sys.stdout.flush()

print()
say("Hello", version=installed_version(), address="")
sys.stdin.readline()
say("Began")
say("Over", code=CODE, verdict="\\x1b[2Jevil \\ud800")
"""


@pytest.mark.parametrize(
    ("code", "expected"), few([(7, 7), (256, 1), (-5, 1), (1 << 70, 1), (0, 0)], [(1 << 70, 1)])
)
def test_what_an_agent_says_at_the_end_is_no_more_than_that(code: int, expected: int, script: Path) -> None:
    """A code that is no number of 64 bits makes no message of it."""
    agent = shlex.join([sys.executable, "-c", LIES.replace("CODE", str(code))])
    ended = run("old", HELLO, OLD_AGENT=agent)
    assert ended.returncode == expected, ended.stderr
    assert "\x1b" not in ended.stderr
    assert ("evil" if code < 1 << 63 else "none has said how the job ended") in ended.stderr


def test_a_killed_launcher_leaves_nobody(script: Path) -> None:
    with staying(script) as (job, pidfds):
        job.kill()
        assert all_end(pidfds)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("number", few(SIGNALS, [signal.SIGINT]))
def test_a_signal_ends_the_job_and_is_said_once(number: signal.Signals, script: Path) -> None:
    with staying(script) as (job, pidfds):
        job.send_signal(number)
        said, _ = job.communicate(timeout=PATIENCE)
        assert all_end(pidfds)
        assert job.returncode == 128 + number, said
        assert said.count(f"stopped by {number.name}: all 4 worker(s) have ended") == 1


@pytest.mark.slow(COSTLY)
def test_a_signal_to_one_job_ends_no_other(script: Path, tmp_path: Path) -> None:
    """Nor does a job leave anything in the folder for temporary files."""
    until = tmp_path / "until"
    other = tmp_path / "other.py"
    other.write_text(
        "import asyncio, os\nimport aiodist as dist\n\n"
        "async def main():\n"
        "    async with await dist.init_process_group() as pg:\n"
        "        print('here', flush=True)\n"
        f"        while not await pg.broadcast_object(os.path.exists({str(until)!r})):\n"
        "            await asyncio.sleep(0.01)\n\n"
        "dist.run(main())\n"
    )
    (tmp_path / "temporary").mkdir()
    second = subprocess.Popen(
        command("a:1,b:1", str(other)),
        env=environ(TMPDIR=str(tmp_path / "temporary")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert second.stdout is not None
        for _ in range(2):
            assert "here" in second.stdout.readline()
        with staying(script) as (job, pidfds):
            job.send_signal(signal.SIGINT)
            job.communicate(timeout=PATIENCE)
            assert all_end(pidfds)
        assert second.poll() is None
        until.touch()
        said, _ = second.communicate(timeout=PATIENCE)
        assert (second.returncode, said) == (0, "")
        assert not list((tmp_path / "temporary").iterdir())
    finally:
        second.kill()
        second.communicate()


@pytest.mark.slow(COSTLY)
def test_an_agent_that_dies_is_named_and_the_others_end(script: Path) -> None:
    with staying(script) as (job, pidfds):
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGKILL)
        said, _ = job.communicate(timeout=PATIENCE)
        assert all_end(pidfds)
        assert job.returncode == 1, said
        assert "node 1 was lost" in said
