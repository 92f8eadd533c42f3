"""Real jobs: output, exit codes, verdicts, and that nothing is left behind, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aiodist.base.errors
from tests.levels import COSTLY

if TYPE_CHECKING:
    from tests.launch.conftest import Start

ROOT = Path(aiodist.__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")


@pytest.mark.slow(COSTLY)
def test_output_is_whole_lines_with_prefix(start: Start) -> None:
    code, out, err = start(
        """
        for part in ("a", "b", "c"):
            print(part * 3, end="", flush=True)
        print()
        print("and then", end="")
        sys.stderr.write("trouble\\n")
        """,
        "--line-prefix-template",
        "${rank}| ",
    ).end()
    assert code == 0
    assert sorted(out.splitlines()) == ["0| aaabbbccc", "0| and then", "1| aaabbbccc", "1| and then"]
    assert sorted(err.splitlines()) == ["0| trouble", "1| trouble"]


@pytest.mark.slow(COSTLY)
def test_environment_of_the_workers(start: Start) -> None:
    code, out, _ = start(
        """
        import json
        if RANK == 1:
            print(json.dumps(dict(os.environ)))
        """,
        "--line-prefix-template",
        "",
        "--rdzv-id",
        "my-job",
    ).end()
    env = json.loads(out)
    assert code == 0
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"], env["NODE_RANK"]) == ("1", "1", "2", "0")
    assert (env["MASTER_ADDR"], env["AIODIST_JOB"]) == ("127.0.0.1", "my-job")
    assert int(env["MASTER_PORT"]) > 0 and len(env["AIODIST_SECRET"]) == 64
    assert env["AIODIST_STORE"].startswith("127.0.0.1:")


def test_workers_can_use_the_store(start: Start) -> None:
    code, out, err = start(
        """
        import asyncio
        from aiodist.rendezvous.client import TcpStore
        async def main():
            host, _, port = os.environ["AIODIST_STORE"].rpartition(":")
            job, secret = os.environ["AIODIST_JOB"], os.environ["AIODIST_SECRET"].encode()
            async with await TcpStore.connect(host, int(port), job, secret, 30) as store:
                await store.set(str(RANK), str(RANK * 10))
                print(await store.get(str(1 - RANK)))
        asyncio.run(main())
        """,
        "--line-prefix-template",
        "${rank}| ",
    ).end()
    assert (code, sorted(out.splitlines())) == (0, ["0| b'10'", "1| b'0'"]), err


@pytest.mark.slow(COSTLY)
def test_first_failure_stops_the_rest_and_is_shown(start: Start) -> None:
    job = start(
        """
        here()
        if RANK == 1:
            class Unlucky(Exception): pass
            try:
                raise Unlucky("boom")
            except Unlucky:
                import traceback; traceback.print_exc()
                sys.exit(7)
        wait()
        """,
        nproc=3,
    )
    code, _, err = job.end()
    assert code == 7
    box = err[err.index("╭─") :].splitlines()
    assert box[0].startswith("╭─ aiodist run: rank 1 failed first ─")
    assert box[1].startswith("│ exit code 7 after ")
    assert "│ Unlucky: boom" in box
    assert "│ ranks 0 and 2: stopped by aiodist run (SIGTERM)" in box
    assert box[-2] == "│ exit code 7" and box[-1].startswith("╰──")


@pytest.mark.slow(COSTLY)
def test_death_by_signal(start: Start) -> None:
    code, _, err = start("if RANK == 0: signal.raise_signal(signal.SIGSEGV)").end()
    assert code == 139
    assert "│ killed by SIGSEGV after " in err
    assert "│ it crashed in native code\n" in err
    assert "│ Fatal Python error: Segmentation fault" in err


@pytest.mark.slow(COSTLY)
def test_a_worker_that_ignores_sigterm_is_killed(start: Start) -> None:
    job = start(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        here()
        if RANK == 1:
            family()
            wait()
        until_go()
        sys.exit(3)
        """,
        "--shutdown-timeout",
        "0.05",
    )
    job.expect(2)
    job.go.touch()
    code, _, err = job.end()
    assert code == 3
    assert "rank 1: stopped by aiodist run (SIGKILL, since it did not end on SIGTERM)" in err


@pytest.mark.slow(COSTLY)
def test_symptoms_do_not_hide_the_culprit(start: Start) -> None:
    """Rank 0 dies of rank 1's death, and is seen first."""
    job = start(
        """
        class PeerLost(Exception): pass
        here()
        if RANK == 0:
            raise PeerLost("lost rank 1")
        until_go()
        raise ValueError("the cause")
        """
    )
    job.expect(2)
    assert job.process.stderr is not None
    seen = ""
    while "aiodist run: rank 0 failed" not in seen:
        seen = job.process.stderr.readline()
    job.go.touch()
    code, _, err = job.end()
    assert code == 1
    assert "rank 1 failed first" in err
    assert "│ ValueError: the cause" in err
    assert "│ rank 0 noticed: lost rank 1\n" in err


@pytest.mark.slow(COSTLY)
def test_who_is_killed_did_not_die_of_an_error_that_it_has_survived(start: Start) -> None:
    """Rank 0 writes that it waited for rank 1, goes on, and is killed; rank 1 has to be stopped."""
    job = start(
        """
        here()
        if RANK == 1:
            wait()
        print("Traceback (most recent call last):\\nCollectiveTimeout: no completion within 1 s on rank 0: "
              "rank 1 had not arrived (in all_reduce #3 of group 'world'). Raise it", file=sys.stderr)
        until_go()
        os.kill(os.getpid(), 9)
        """
    )
    job.expect(2)
    job.go.touch()
    code, _, err = job.end()
    assert code == 137
    assert "rank 0 failed: killed by SIGKILL\n" in err
    assert "rank 0 failed first" in err
    assert "rank 1: stopped by aiodist run (SIGTERM)" in err


@pytest.mark.slow(COSTLY)
def test_survivors_say_what_they_noticed_before_the_box(start: Start) -> None:
    """Rank 2 is killed, ranks 0 and 1 notice, and rank 3 has to be stopped."""
    job = start(
        """
        class PeerLost(Exception): pass
        here()
        until_go()
        if RANK == 2:
            os.kill(os.getpid(), 9)
        if RANK == 3:
            wait()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # they end by themselves, however slow the machine is
        raise PeerLost("lost rank 2: gone (in all_reduce #3 of group 'world'). Look there")
        """,
        nproc=4,
    )
    job.expect(4)
    job.go.touch()
    code, _, err = job.end()
    assert code == 137
    box = err[err.index("╭─") :]
    assert "rank 2 failed first" in box
    assert "│ ranks 0 and 1 noticed: lost rank 2: gone (in all_reduce #3 of group 'world')\n" in box
    assert "│ rank 3: stopped by aiodist run (SIGTERM)\n" in box
    assert err.count("PeerLost: lost rank 2") in (1, 2), "one after the other, or both at once"
    assert "ranks 0, 1│" in err or err.count("PeerLost: lost rank 2") == 2
    assert "worker(s) here still run; they are asked to end\n" in err


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("signum", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_operators_signal_leaves_nothing(start: Start, signum: signal.Signals, expected: int) -> None:
    job = start("here()\nfamily()\ntell('ready')\nwait()", "--shutdown-timeout", "0.05")
    job.expect(4)
    job.process.send_signal(signum)
    code, _, err = job.end()
    assert code == expected
    assert err.splitlines()[-1].startswith(
        f"aiodist run: stopped by {signum.name}: all 2 worker(s) have ended"
    )


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("prefix", "signum"),
    [
        (("nohup",), signal.SIGHUP),
        (("sh", "-c", 'trap \'\' INT; exec "$0" "$@"'), signal.SIGINT),  # as in its background jobs
        (("sh", "-c", 'trap \'\' QUIT; exec "$0" "$@"'), signal.SIGQUIT),
    ],
    ids=["nohup", "INT", "QUIT"],
)
def test_signal_that_was_ignored_before_does_not_end_the_job(
    start: Start, prefix: tuple[str, ...], signum: signal.Signals
) -> None:
    body = "here()\nuntil_go()\nsys.exit(signal.getsignal(int(os.environ['IT'])) is not signal.SIG_IGN)"
    job = start(body, prefix=prefix, env={"IT": str(int(signum))})
    job.expect(2)
    status = Path(f"/proc/{job.process.pid}/status").read_text()
    [ignored] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    assert int(ignored, 16) >> (signum - 1) & 1
    job.process.send_signal(signum)
    job.go.touch()
    code, _, err = job.end()
    assert (code, err) == (0, "")


BLOCKING = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD})
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.slow(COSTLY)
def test_signals_that_were_blocked_before_reach_the_agent_and_not_its_workers(start: Start) -> None:
    """Nor do the guardians miss that a worker has ended."""
    blocked = (sys.executable, "-c", BLOCKING)
    body = "here(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))\n"
    expected = [int(signum) for signum in sorted((signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD))]
    job = start(body + "wait()", "--shutdown-timeout", "0.02", prefix=blocked, nproc=1)
    assert job.expect(1) == [f"0 {expected}"]
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == 143
    assert start(body + "sys.exit(200)", prefix=blocked, nproc=1).end()[0] == 200


@pytest.mark.slow(COSTLY)
def test_a_second_interrupt_does_not_wait(start: Start) -> None:
    job = start(
        """
        signal.signal(signal.SIGINT, lambda *_: tell("again?"))
        here()
        wait()
        """
    )
    job.expect(2)
    job.process.send_signal(signal.SIGINT)
    job.expect(4)
    job.process.send_signal(signal.SIGINT)
    assert job.end()[0] == 130


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_a_signal_interrupts_a_main_thread_that_is_not_the_only_one(
    start: Start, signum: signal.Signals
) -> None:
    job = start(
        """
        import threading
        def end(*_):
            tell("ends")
            sys.exit(3)
        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGTERM, end)
        for _ in range(8):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        here()
        threading.Event().wait()
        """
    )
    job.expect(2)
    job.process.send_signal(signum)
    assert sorted(job.expect(4))[::2] == ["0 ends", "1 ends"]
    assert job.end()[0] == 128 + signum


@pytest.mark.slow(COSTLY)
def test_a_signal_that_the_main_thread_blocks_reaches_the_thread_that_waits_for_it(start: Start) -> None:
    job = start(
        """
        import threading
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        here()
        def until():
            signal.sigwait([signal.SIGTERM])
            tell("ends")
        thread = threading.Thread(target=until)
        thread.start()
        thread.join()
        """
    )
    job.expect(2)
    job.process.send_signal(signal.SIGTERM)
    assert sorted(job.expect(4))[::2] == ["0 ends", "1 ends"]
    assert job.end()[0] == 143


def test_a_killed_agent_leaves_nothing(start: Start) -> None:
    job = start(
        """
        for signum in (1, 2, 15): signal.signal(signum, signal.SIG_IGN)
        here()
        family()
        tell("ready")
        wait()
        """
    )
    job.expect(4)
    job.process.kill()
    assert job.end()[0] == -signal.SIGKILL


@pytest.mark.slow(COSTLY)
def test_what_a_good_worker_leaves_behind_is_ended(start: Start) -> None:
    body = "here()\nfamily()\nkin.stdout.close()\nkin.returncode = 0"
    assert start(body, "--shutdown-timeout", "0.02").end()[0] == 0


@pytest.mark.slow(COSTLY)
def test_usr1_is_passed_on(start: Start) -> None:
    job = start(
        """
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
        here()
        wait()
        """
    )
    job.expect(2)
    job.process.send_signal(signal.SIGUSR1)
    assert job.end()[0] == 0


@pytest.mark.slow(COSTLY)
def test_a_reader_that_goes_away_does_not_stop_the_job(start: Start) -> None:
    job = start(
        """
        here()
        until_go()
        for _ in range(100):
            print("x" * 1000, flush=True)
        tell("done")
        """
    )
    job.expect(2)
    assert job.process.stdout is not None
    job.process.stdout.close()
    job.go.touch()
    assert sorted(job.expect(4))[::2] == ["0 done", "1 done"]
    _, err = job.process.communicate()
    assert (job.process.returncode, err) == (0, "")


@pytest.mark.slow(COSTLY)
def test_files(start: Start, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    code, out, err = start(
        "print('out', RANK)\nprint('err', RANK, file=sys.stderr)",
        *("--log-dir", str(logs), "-r", "0:3", "--tee", "1:1", "--rdzv-id", "a/b"),
    ).end()
    assert code == 0
    [folder] = logs.iterdir()
    assert folder.name.startswith("a_b_")
    files = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert files == {
        "attempt_0/0/stdout.log": "out 0\n",
        "attempt_0/0/stderr.log": "err 0\n",
        "attempt_0/1/stdout.log": "out 1\n",
    }
    assert "out 1" in out and "out 0" not in out
    assert "err 1" in err and "err 0" not in err


@pytest.mark.slow(COSTLY)
def test_only_some_ranks_are_shown(start: Start) -> None:
    code, out, _ = start("print('from', RANK)", "--local-ranks-filter", "1").end()
    assert code == 0
    assert "from 1" in out and "from 0" not in out


@pytest.mark.slow(COSTLY)
def test_rank_0_reads_the_launchers_input(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(repr(sys.stdin.read()))")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "aiodist",
            "run",
            "--nproc_per_node=2",
            "--line-prefix-template=$rank",
            str(script),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input="hello",
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.splitlines()) == ["0'hello'", "1''"]


@pytest.mark.slow(COSTLY)
def test_on_a_terminal_prefixes_have_colours_and_progress_is_drawn_over(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.stderr.write('\\r 10%\\r 20%\\r100%\\n')")
    leader, follower = os.openpty()
    subprocess.run(
        [sys.executable, "-m", "aiodist", "run", "--line-prefix-template=$rank|", str(script)],
        env={k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        check=True,
    )
    shown = ""
    while not shown.endswith("\r\n"):
        shown += os.read(leader, 4096).decode()
    os.close(follower)
    os.close(leader)
    prefix, over = "\x1b[36m0|\x1b[0m", "\r\x1b[K"
    assert shown.endswith(f"{prefix} 20%{over}{prefix}100%\r\n")
