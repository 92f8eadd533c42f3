"""Real jobs for tests: an agent, its workers, and what they tell.

A job's processes all hold a FIFO open for writing; its end of file proves that every one has gone.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aiodist.base.errors

ROOT = Path(aiodist.__file__).parents[1]

# In front of every script: `here()` holds the FIFO and says so; `family()` adds a stubborn grandchild.
PRELUDE = """\
import os, signal, sys, time
RANK = int(os.environ["RANK"])
def here(text="up"):
    global fifo
    fifo = os.open(os.environ["FIFO"], os.O_WRONLY)
    os.set_inheritable(fifo, True)
    tell(text)
def tell(text):
    os.write(fifo, f"{RANK} {text}\\n".encode())
def family():
    child = "import os, signal, sys\\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\\n"
    child += "os.write(1, b'x')\\nsignal.pause()"
    global kin
    import subprocess  # only here: a hundred workers start in these tests
    kin = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, close_fds=False)
    kin.stdout.read(1)
def daemon(then="wait()"):
    "A stubborn process that is nobody's child, in a session of its own; it does `then`."
    read, write = os.pipe()
    if not os.fork():
        for signum in (1, 2, 15): signal.signal(signum, signal.SIG_IGN)
        os.setsid()
        if not os.fork():
            tell(f"daemon {os.getpid()}")
            os.close(write)
            exec(then)
        os._exit(0)
    os.close(write)
    os.wait()
    os.read(read, 1)
def until_go():
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)
def wait():
    while True:
        signal.pause()
COUNT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def elastic():
    "Say what dist.join() says to the launcher: this script can take in a worker while it runs."
    import asyncio
    from aiodist.rendezvous.client import TcpStore
    async def main():
        host, _, port = os.environ["AIODIST_STORE"].rpartition(":")
        job, secret = os.environ["AIODIST_JOB"], os.environ["AIODIST_SECRET"].encode()
        async with await TcpStore.connect(host, int(port), job, secret, 30) as store:
            ranks = range(int(os.environ["WORLD_SIZE"]))  # of the first group, which is complete
            keys = ["aiodist/elastic", *(f"aiodist/elastic/{rank}" for rank in ranks)]
            await store.multi_set(keys, [b"1"] + [b"in"] * len(ranks))
    asyncio.run(main())
"""


class Job:
    """One agent and the FIFO of its workers. `go`: a file whose existence `until_go()` waits for."""

    def __init__(self, process: subprocess.Popen[str], fifo: int, go: Path) -> None:
        self.process = process
        self.fifo = fifo
        self.go = go
        self.told: list[str] = []
        self._partial = ""
        self.said: list[str] = []

    def expect(self, count: int) -> list[str]:
        """Lines that workers told, once there are so many in all."""
        while len(self.told) < count:
            assert self._read(), f"the job ended early: {self.process.communicate()}"
        return self.told

    def until_said(self, text: str) -> str:
        """The agent's next line with this text."""
        assert self.process.stderr is not None
        while text not in (line := self.process.stderr.readline()):
            assert line, f"the job ended without saying {text!r}"
            self.said.append(line)
        self.said.append(line)
        return line

    def _read(self) -> bool:
        select.select([self.fifo], [], [])
        data = os.read(self.fifo, 4096).decode()
        *lines, self._partial = (self._partial + data).split("\n")
        self.told += lines
        return bool(data)

    def all_gone(self) -> None:
        """Returns when no process holds the FIFO any more."""
        while self._read():
            pass

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr; nothing of the job is left."""
        out, err = self.process.communicate()
        self.all_gone()
        return self.process.returncode, out, "".join(self.said) + err


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Job] = []

    def start(
        body: str,
        *options: str,
        env: dict[str, str] | None = None,
        nproc: int = 2,
        prefix: tuple[str, ...] = (),
        program: str = "",
    ) -> Job:
        name = tmp_path / f"fifo{len(jobs)}"
        os.mkfifo(name)
        go = tmp_path / f"go{len(jobs)}"
        script = tmp_path / f"script{len(jobs)}.py"
        script.write_text(PRELUDE + textwrap.dedent(body))
        fifo = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(name, os.O_WRONLY)
        launcher = ["-c", program] if program else ["-m", "aiodist"]
        count = ["--nproc-per-node", str(nproc)]
        process = subprocess.Popen(
            [*prefix, sys.executable, *launcher, "run", *count, *options, str(script)],
            env={
                **{name: value for name, value in os.environ.items() if name != "AIODIST_SECRET"},
                "PYTHONPATH": str(ROOT),
                "FIFO": str(name),
                "GO": str(go),
                "HOME": str(tmp_path),
                **(env or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[writer],  # the agent counts as one of the job's processes
            text=True,
        )
        os.close(writer)
        jobs.append(Job(process, fifo, go))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
        job.process.communicate()
        os.close(job.fifo)
