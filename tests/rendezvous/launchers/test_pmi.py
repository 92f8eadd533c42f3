"""Texts by PMI: with the mpirun of MPICH, and with one that misbehaves."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3]))  # `benchmarks` is not part of the wheel

from aiodist.base.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.rendezvous.launchers import pmi
from aiodist.rendezvous.launchers.pmi import MAX_TEXT, Pmi
from benchmarks import mpi
from tests.levels import COSTLY, few
from tests.processes import run_to_end

JOB = Path(__file__).parent / "pmi_job.py"
PATIENCE = 120.0
TWO_HOSTS = ("-launcher", "fork", "-hosts", "localhost,127.0.0.1", "-ppn", "1")


# The real one.


@cache
def installed() -> mpi.Mpi | str:
    flavour = next(flavour for flavour in mpi.FLAVOURS if flavour.name == "mpich")
    return mpi.find(flavour, None, mpi.search_path(), mpi.own_prefix())


def run(program: str, size: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program of pmi_job.py on `size` ranks."""
    found = installed()
    if isinstance(found, str):
        pytest.skip(f"MPICH: {found}")
    command = [found.launcher, *options, "-n", str(size), sys.executable, str(JOB), program]
    return run_to_end(command, {**os.environ, **found.env}, PATIENCE)


def well(program: str, size: int, *options: str) -> None:
    """Run a program that ends well on all ranks."""
    ended = run(program, size, *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("<well>") == size, ended.stdout + ended.stderr
    assert ended.stderr == ""


@pytest.mark.parametrize("size", few([1, 2, 4], [2]))
def test_texts(size: int) -> None:
    well("texts", size)


def test_texts_between_hosts() -> None:
    well("texts", 2, *TWO_HOSTS)


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.parametrize("size", few([1, 2, 4], [2]))
@pytest.mark.parametrize("program", few(["mpi_later", "mpi_before", "mpi_without_mpi4py"], ["mpi_later"]))
def test_mpi_in_the_same_process(program: str, size: int) -> None:
    found = installed()
    if program == "mpi_without_mpi4py" and not isinstance(found, str) and "MPI4PY_LIBMPI" not in found.env:
        pytest.skip("where MPICH's library is is not known")
    well(program, size)


@pytest.mark.slow(COSTLY)
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_mpi_between_hosts() -> None:
    well("mpi_later", 2, *TWO_HOSTS)


@pytest.mark.slow(COSTLY)
def test_processes_may_end_at_different_times() -> None:
    well("one_stays", 3)


def test_job_ends_where_one_cannot_start() -> None:
    ended = run("one_cannot_start", 3)
    assert ended.returncode != 0
    assert "rank 0 has no address" in ended.stderr


@pytest.mark.slow(COSTLY)
def test_children_of_a_process_do_not_speak() -> None:
    well("children", 2)


# One that misbehaves.


class Fake:
    """Mpirun's end of a socket, which answers what a test says; and the process's."""

    def __init__(self) -> None:
        self.theirs, self.ours = socket.socketpair()
        self.theirs.setblocking(False)
        self.ours.set_inheritable(True)
        self.environ = {"PMI_FD": str(self.ours.fileno())}
        self.values: dict[str, str] = {}
        self.heard: list[str] = []

    def close(self) -> None:
        self.theirs.close()
        self.ours.close()

    def answer(self, request: str) -> bytes:
        """Of an mpirun that behaves, with one process."""
        said = dict(part.split("=", 1) for part in request.split())
        if said["cmd"] == "put":
            self.values[said["key"]] = said["value"]
        found = self.values.get(said.get("key", ""))
        answers = {
            "init": "response_to_init rc=0 pmi_version=1 pmi_subversion=1",
            "get_maxes": "maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
            "get_my_kvsname": "my_kvsname kvsname=kvs_7",
            "put": "put_result rc=0 msg=success",
            "barrier_in": "barrier_out",
            "get": f"get_result rc=0 msg=success value={found}"
            if found
            else "get_result rc=-1 value=unknown",
        }
        return f"cmd={answers[said['cmd']]}\n".encode()

    @contextlib.asynccontextmanager
    async def serving(self, **instead: bytes | Callable[[], None]) -> AsyncIterator[None]:
        """Answer every request; some, by command, with other bytes, or by doing something."""
        task = asyncio.create_task(self._serve(instead))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _serve(self, instead: dict[str, bytes | Callable[[], None]]) -> None:
        loop = asyncio.get_running_loop()
        while line := (await loop.sock_recv(self.theirs, 4096)).decode():
            self.heard.append(line)
            answer = instead.get(line.split()[0].removeprefix("cmd="), self.answer(line))
            if isinstance(answer, bytes):
                await loop.sock_sendall(self.theirs, answer)
            else:
                answer()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """An mpirun, and a process that has not spoken."""
    process = pmi.PmiProcess()
    monkeypatch.setattr(pmi, "this", process)
    found = Fake()
    yield found
    found.close()
    atexit.unregister(process.leave)


async def test_texts_are_told(fake: Fake) -> None:
    async with fake.serving():
        for number, text in enumerate(("127.0.0.1:29500", "a b=c")):
            talk = await Pmi.connect(fake.environ, 60)
            await talk.tell(text)
            fake.values[f"aiodist-{number + 1}"] = fake.values[f"aiodist-{number}"]
        assert await talk.ask() == "a b=c"
    assert list(fake.values) == ["aiodist-0", "aiodist-1", "aiodist-2"]  # never twice
    assert all(
        value.isascii() and value.replace("-", "").replace("_", "").isalnum()
        for value in fake.values.values()
    )
    assert fake.ours.getblocking()  # as MPI wants it


async def test_answer_may_come_in_pieces(fake: Fake) -> None:
    asked = asyncio.Event()
    async with fake.serving(get_maxes=asked.set):
        connecting = asyncio.create_task(Pmi.connect(fake.environ, 60))
        await asked.wait()
        await asyncio.get_running_loop().sock_sendall(fake.theirs, b"cmd=ma")
        for _ in range(10):  # turns of the loop, so that it is seen alone
            await asyncio.sleep(0)
        await asyncio.get_running_loop().sock_sendall(fake.theirs, b"xes vallen_max=1024 \n")
        await connecting


OVERLONG = b"cmd=response_to_init rc=0 pmi_version=" + b"1" * 5000 + b"\n"


@pytest.mark.parametrize(
    ("at", "answer", "said"),
    [
        ("init", b"cmd=response_to_init rc=-1 pmi_version=2\n", "answers 'cmd=response_to_init rc=-1"),
        ("init", b"\xff\x00 garbage\n", "answers '�.* garbage.* to 'cmd=init'"),
        ("init", b"\n", "answers"),
        ("init", OVERLONG, "more than 4096 bytes"),
        ("init", OVERLONG[:-1], "more than 4096 bytes"),
        ("init", b"cmd=response_to_init rc=0\ncmd=maxes vallen_max=1024\n", "answers"),
        ("get_maxes", b"cmd=response_to_init rc=0\n", "answers.*to 'cmd=get_maxes'"),
        ("get_maxes", b"cmd=maxes vallen_max=80\n", "stores no texts"),
        ("get_maxes", b"cmd=maxes\n", "stores no texts"),
        ("get_maxes", b"cmd=maxes vallen_max=many\n", "stores no texts"),
        ("get_my_kvsname", b"cmd=my_kvsname\n", "stores no texts"),
    ],
)
async def test_no_conversation(fake: Fake, at: str, answer: bytes, said: str) -> None:
    async with fake.serving(**{at: answer}):
        with pytest.raises(RendezvousError, match=said) as raised:
            await Pmi.connect(fake.environ, 60)
    assert "set MASTER_ADDR" in raised.value.hint
    assert len(str(raised.value).splitlines()) == 1 and len(str(raised.value)) < 300


async def test_conversation_that_ends(fake: Fake) -> None:
    async with fake.serving(barrier_in=lambda: fake.theirs.shutdown(socket.SHUT_RDWR)):
        talk = await Pmi.connect(fake.environ, 60)
        with pytest.raises(RendezvousError, match="mpirun has closed its PMI connection"):
            await talk.ask()


async def test_conversation_that_has_ended(fake: Fake) -> None:
    async with fake.serving():
        talk = await Pmi.connect(fake.environ, 60)
    fake.theirs.close()
    with pytest.raises(RendezvousError, match=r"the PMI connection to mpirun failed: Broken pipe\."):
        await talk.tell("x")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"value=unknown", "a text that no rank has put: 'unknown'"),
        (b"value=x/w", "'/w'"),
        (b"value=x_w", "'_w'"),
        (b"", "''"),
    ],
)
async def test_what_was_not_told(fake: Fake, value: bytes, said: str) -> None:
    async with fake.serving(get=b"cmd=get_result rc=0 " + value + b"\n"):
        talk = await Pmi.connect(fake.environ, 60)
        with pytest.raises(RendezvousError, match=said):
            await talk.ask()


async def test_nobody_tells(fake: Fake) -> None:
    async with fake.serving():
        talk = await Pmi.connect(fake.environ, 60)
        with pytest.raises(RendezvousError, match=r"answers 'cmd=get_result rc=-1.* to 'cmd=get'"):
            await talk.ask()


async def test_mute(fake: Fake) -> None:
    with pytest.raises(RendezvousTimeout, match=r"mpirun does not answer within 0\.01 s"):
        await Pmi.connect(fake.environ, 0.01)
    assert fake.ours.getblocking()


async def test_not_all_come(fake: Fake) -> None:
    async with fake.serving(barrier_in=b""):
        talk = await Pmi.connect(fake.environ, 60)
        talk._timeout = 0.01
        with pytest.raises(
            RendezvousTimeout, match=r"not all processes of this mpirun came within 0\.01 s\. Every"
        ):
            await talk.tell("x")
        # The answer may come yet, and would be taken for another one.
        for again in (talk.tell("x"), talk.ask(), Pmi.connect(fake.environ, 60)):
            with pytest.raises(
                RendezvousError, match="an earlier exchange of this process with mpirun did not finish"
            ):
                await again
        assert fake.heard.count("cmd=barrier_in\n") == 1


async def test_cancelled(fake: Fake) -> None:
    asked = asyncio.Event()
    async with fake.serving(barrier_in=asked.set):
        talk = await Pmi.connect(fake.environ, 60)
        asking = asyncio.create_task(talk.ask())
        await asked.wait()
        with pytest.raises(RendezvousError, match="another task or thread of this process"):
            await talk.tell("x")
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
    with pytest.raises(RendezvousError, match="did not finish"):
        await talk.ask()
    pmi.this.leave()
    assert "cmd=finalize\n" not in fake.heard


async def test_long_texts_are_refused(fake: Fake) -> None:
    async with fake.serving():
        talk = await Pmi.connect(fake.environ, 60)
        with pytest.raises(UsageError, match="601 bytes is too long"):
            await talk.tell("é" * 300 + "x")
        await talk.tell("é" * (MAX_TEXT // 2))


@pytest.mark.parametrize(
    ("environ", "kind", "said"),
    [
        ({}, RendezvousError, "PMI_FD is not set"),
        ({"PMI_FD": ""}, RendezvousError, "PMI_FD is not set"),
        ({"PMI_FD": "-1"}, UsageError, "PMI_FD='-1' is not a descriptor"),
        ({"PMI_FD": "²"}, UsageError, "is not a descriptor"),
        ({"PMI_FD": "9" * 5000}, UsageError, "'9{40}' is not a descriptor"),
        ({"PMI_FD": "99999"}, RendezvousError, "PMI_FD=99999 was not handed down"),
    ],
)
async def test_no_mpirun(environ: dict[str, str], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        await Pmi.connect(environ, 60)


async def test_what_this_process_has_opened_itself_is_not_written_to(fake: Fake, tmp_path: Path) -> None:
    fake.ours.set_inheritable(False)
    with pytest.raises(RendezvousError, match="was not handed down"):
        await Pmi.connect(fake.environ, 60)
    with (tmp_path / "precious").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        with pytest.raises(RendezvousError, match="was not handed down"):
            await Pmi.connect({"PMI_FD": str(file.fileno())}, 60)
    assert not (tmp_path / "precious").read_bytes()
    with pytest.raises(BlockingIOError):
        fake.theirs.recv(1)


@pytest.mark.skipif(sys.platform != "linux", reason="sockets may have no locks")
async def test_another_process_speaks(fake: Fake) -> None:
    fd = fake.ours.fileno()
    hold = f"import fcntl; fcntl.lockf({fd}, fcntl.LOCK_EX); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RendezvousError, match="another process uses"):
            await Pmi.connect(fake.environ, 60)
        other.communicate("\n", timeout=PATIENCE)
    async with fake.serving():
        await Pmi.connect(fake.environ, 60)


async def test_goodbye_comes_after_a_text(fake: Fake) -> None:
    async with fake.serving():
        talk = await Pmi.connect(fake.environ, 60)
        pmi.this.leave()
        await talk.tell("x")
    fake.theirs.send(b"cmd=finalize_ack\n")
    pmi.this.leave()
    assert fake.theirs.recv(4096) == b"cmd=finalize\n"
    assert "cmd=finalize\n" not in fake.heard


async def test_mpi_says_goodbye_itself(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake.serving():
        await (await Pmi.connect(fake.environ, 60)).tell("x")

    class Mpi4py:
        @staticmethod
        def Is_initialized() -> bool:  # noqa: N802
            return True

    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Mpi4py)
    pmi.this.leave()
    with pytest.raises(BlockingIOError):
        fake.theirs.recv(1)


async def test_goodbye_to_nobody(fake: Fake) -> None:
    async with fake.serving():
        await (await Pmi.connect(fake.environ, 60)).tell("x")
    fake.theirs.close()
    pmi.this.leave()
