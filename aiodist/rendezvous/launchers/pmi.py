"""PMI-1: lines of text that each process of an mpirun of MPICH or Intel MPI (Hydra) exchanges with it.

    tell    cmd=put kvsname=… key=aiodist-0 value=…        rank 0
            cmd=barrier_in                                 answered when every process has said so
    ask     cmd=barrier_in, cmd=get kvsname=… key=…        the others

The socket, whose descriptor is in PMI_FD, is meant for the MPI library. Both get along:

- MPI_Init begins anew what we have begun, and we what it has. So nothing is closed or said goodbye to here.
- A process that has said a word and then ends without `finalize`, with whatever exit code, makes mpirun kill
  the others. So it is said at the end of the interpreter, unless MPI was initialised, which then says it.
  Not where no text has passed yet: who cannot start needs nobody else.
- MPI reads from the descriptor as it is, blocking: it is so again after every call.
- An answer that nobody has waited for would be taken for the next one. So there is no next call after one
  that failed or was cancelled.
- It belongs to one process. Children have it, too, if they are forked: the lock tells.
- What is put is there for good. So the keys are numbered; all processes of a job count alike.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import os
import socket
import stat
import sys
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from aiodist.base.errors import AiodistError, RendezvousError, RendezvousTimeout, UsageError
from aiodist.base.timeouts import spoken
from aiodist.net.sockets import describe
from aiodist.net.within import within
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.launchers.address_exchange import meet_once, not_all_came
from aiodist.rendezvous.meeting_point import MeetingPoint

MAX_TEXT = 600  # bytes, of what is told: it is three quarters of its line, which is 1 KiB in old versions

_MAX_LINE = 4096  # bytes of an answer
_LEAVE_SECONDS = 5.0  # for mpirun to take note of the end
_FIRST = "x"  # a value begins with it, so that none is empty
_HINT = (
    "Start the job again; or set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port, on every rank"
)


async def meet(invitation: Invitation, _point: MeetingPoint) -> Meeting:
    """Meet where rank 0 tells by PMI."""
    return await meet_once(await Pmi.connect(invitation.environ, invitation.timeout), invitation)


class PmiProcess:
    """Record of what this process has said to mpirun. Any thread may ask to send.

    Attributes:
        passed: texts that all have.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._fd = -1
        self._gave_up = False
        self.passed = 0

    @contextlib.contextmanager
    def speaks(self, fd: int) -> Iterator[socket.socket]:
        """The socket, for nobody else meanwhile.

        Raises:
            RendezvousError: it is another's to speak, or there is nothing to be said any more.
        """
        if self._pid not in (0, os.getpid()):
            raise RendezvousError(
                "the process that this one was forked from is the one that speaks to mpirun"
            )
        if not self._lock.acquire(blocking=False):
            raise RendezvousError("another task or thread of this process is exchanging a text with mpirun")
        try:
            if self._gave_up:
                raise RendezvousError(
                    "an earlier exchange of this process with mpirun did not finish: the next answer may "
                    "belong to that one",
                    hint=_HINT,
                )
            with _opened(fd) as sock:
                if not self._pid:
                    self._pid, self._fd = os.getpid(), fd
                    atexit.register(self.leave)
                self._gave_up = True
                yield sock
                self._gave_up = False
        finally:
            self._lock.release()

    def leave(self) -> None:
        """Say that this end of the interpreter is one, or mpirun kills the others."""
        if os.getpid() != self._pid or self._gave_up or not self.passed or _mpi_says_it():
            return
        with contextlib.suppress(OSError, AiodistError), _opened(self._fd) as sock:
            sock.settimeout(_LEAVE_SECONDS)
            sock.sendall(b"cmd=finalize\n")
            sock.recv(_MAX_LINE)  # who goes before the answer is read is dead to mpirun


this = PmiProcess()


class Pmi:
    """Exchange of texts by mpirun. Make it with `await Pmi.connect(…)`; there is nothing to close.

    Each text is told by one process and asked for by all the others, and passes when all have come.
    """

    def __init__(self, fd: int, timeout: float) -> None:
        self._fd = fd
        self._timeout = timeout
        self._space = ""  # mpirun's name for what this job's processes put

    @classmethod
    async def connect(cls, environ: Mapping[str, str], timeout: float) -> Pmi:
        """Greet mpirun.

        Args:
            environ: the environment variables.
            timeout: seconds, for this and for each text.

        Raises:
            RendezvousError: there is no mpirun, or not for this process, or it speaks something else.
            RendezvousTimeout: it does not answer.
        """
        self = cls(_descriptor(environ), timeout)
        with this.speaks(self._fd) as sock:
            late = partial(RendezvousTimeout, f"mpirun does not answer within {spoken(timeout)}", hint=_HINT)
            async with within(timeout, late):
                init = "cmd=init pmi_version=1 pmi_subversion=1"
                await _ask(sock, init, "response_to_init")
                maxes = await _ask(sock, "cmd=get_maxes", "maxes")
                named = await _ask(sock, "cmd=get_my_kvsname", "my_kvsname")
        longest, self._space = maxes.get("vallen_max", ""), named.get("kvsname", "")
        if not self._space or not longest.isdecimal() or int(longest[:9]) < len(_encode("x" * MAX_TEXT)):
            raise RendezvousError("mpirun's PMI stores no texts", hint=_HINT)
        return self

    async def tell(self, text: str) -> None:
        """Tell all others a text, and wait until all have come.

        Raises:
            UsageError: it has more than `MAX_TEXT` bytes.
            RendezvousTimeout: not all came in time.
            RendezvousError: mpirun does not play along.
        """
        if len(text.encode()) > MAX_TEXT:
            raise UsageError(
                f"a text of {len(text.encode())} bytes is too long for PMI, which takes {MAX_TEXT}"
            )
        await self._exchange(text)

    async def ask(self) -> str:
        """The text that another process tells.

        Raises:
            RendezvousTimeout: not all came in time.
            RendezvousError: nobody told one, or mpirun does not play along.
        """
        return await self._exchange(None)

    async def _exchange(self, text: str | None) -> str:
        with this.speaks(self._fd) as sock:
            at = f"kvsname={self._space} key=aiodist-{this.passed}"
            async with within(self._timeout, partial(not_all_came, self._timeout)):
                if text is not None:
                    await _ask(sock, f"cmd=put {at} value={_encode(text)}", "put_result")
                await _ask(sock, "cmd=barrier_in", "barrier_out")
                if text is None:
                    text = _decode((await _ask(sock, f"cmd=get {at}", "get_result")).get("value", ""))
            this.passed += 1
        return text


async def _ask(sock: socket.socket, request: str, name: str) -> dict[str, str]:
    """Send a line → what the one that answers it says, by name."""
    loop = asyncio.get_running_loop()
    answer = b""
    try:
        await loop.sock_sendall(sock, f"{request}\n".encode())
        while not answer.endswith(b"\n"):
            data = await loop.sock_recv(sock, _MAX_LINE + 1 - len(answer))
            if not data:
                raise RendezvousError("mpirun has closed its PMI connection to this process", hint=_HINT)
            answer += data
            if len(answer) > _MAX_LINE:
                raise RendezvousError(f"mpirun answers with more than {_MAX_LINE} bytes", hint=_HINT)
    except OSError as error:
        raise RendezvousError(f"the PMI connection to mpirun failed: {describe(error)}", hint=_HINT) from None
    said = dict(part.partition("=")[::2] for part in answer.decode(errors="replace").split())
    if said.get("cmd") != name or said.get("rc", "0") != "0" or answer.count(b"\n") != 1:
        request = request.split()[0]
        raise RendezvousError(
            f"mpirun answers {answer.decode(errors='replace')[:80]!r} to {request!r}", hint=_HINT
        )
    return said


def _encode(text: str) -> str:
    """Encode in characters that every version takes in a value: no blanks, no '='."""
    return _FIRST + urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(value: str) -> str:
    try:
        if not value.startswith(_FIRST):
            raise ValueError
        value = value.removeprefix(_FIRST)
        return urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
    except ValueError:
        raise RendezvousError(
            f"mpirun returned a text that no rank has put: {value[:40]!r}", hint=_HINT
        ) from None


def _descriptor(environ: Mapping[str, str]) -> int:
    text = environ.get("PMI_FD", "")
    if not text:
        raise RendezvousError(
            "PMI_FD is not set: no mpirun of MPICH or Intel MPI has started this process", hint=_HINT
        )
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(f"PMI_FD={text[:40]!r} is not a descriptor")
    return int(text)


@contextlib.contextmanager
def _opened(fd: int) -> Iterator[socket.socket]:
    """mpirun's socket, not blocking, and this process's alone. Afterwards it is as it was.

    A process may have got the variable without the descriptor. Then it has nothing of that number, or
    something that it has opened itself; what Python opens is not handed down: that tells them apart.
    """
    try:
        handed_down = stat.S_ISSOCK(os.fstat(fd).st_mode) and os.get_inheritable(fd)
    except OSError:
        handed_down = False
    if not handed_down:
        raise RendezvousError(f"mpirun's socket PMI_FD={fd} was not handed down to this process", hint=_HINT)
    with socket.socket(fileno=os.dup(fd)) as sock:
        try:
            fcntl.lockf(sock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until a descriptor of it is closed
        except (BlockingIOError, PermissionError):
            raise RendezvousError("another process uses the same PMI connection to mpirun") from None
        except OSError:
            pass  # no locks on sockets here
        blocking = os.get_blocking(fd)
        sock.setblocking(False)
        try:
            yield sock
        finally:
            sock.setblocking(blocking)


def _mpi_says_it() -> bool:
    """Whether an MPI library is or was initialised in this process: then it says `finalize` itself."""
    if (mpi4py := sys.modules.get("mpi4py.MPI")) is not None:
        return bool(mpi4py.Is_initialized())
    import ctypes  # not before the end of the process

    for path in _mapped("libmpi"):
        initialised = ctypes.c_int(0)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_LAZY).MPI_Initialized(ctypes.byref(initialised))
        if initialised.value:
            return True
    return False


def _mapped(name: str) -> set[str]:
    """The files of this process's memory whose names begin with something."""
    try:
        lines = os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return {path for path in paths if os.path.basename(path).startswith(name)}
