"""One agent, started by the system's ssh client: its pipes, and what it means where it does not start.

    ssh -T -o BatchMode=yes … user@host 'exec python -P -u -m aiodist.cli.commands.agent'

A host that is this one (localhost, its own name) needs no ssh.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
from collections.abc import Callable
from contextlib import suppress

from aiodist.base.environment.process import signal_name
from aiodist.base.errors import RendezvousError, UsageError, WireError
from aiodist.base.sanitize import one_line
from aiodist.launch.place import ABOUT_A_WORKER
from aiodist.launch.remote.hosts import Host
from aiodist.launch.remote.messages import BEAT, LONGEST, MARK, SILENCE, Message, decode, encode
from aiodist.launch.worker.output import Console
from aiodist.net.sockets import describe

_MODULE = "aiodist.cli.commands.agent"
_SSH_FAILS = 255
_NOT_FOUND = (126, 127)
_ABOUT_US = ("SSH_CONNECTION", *ABOUT_A_WORKER)
_KEPT = 20  # last lines of stderr, for an agent that does not start
_FOUND = (  # what ssh says, in lower case, and what it means
    ("permission denied", "it refuses this login", "Give it your public key: ssh-copy-id {name}"),
    ("host key verification failed", "its key is not the known one", "Connect once by hand: ssh {name}"),
    ("could not resolve", "nobody knows the name", "Write its address, or put it into ~/.ssh/config"),
    ("connection refused", "no ssh server listens there", "Start sshd on it"),
    ("timed out", "it does not answer", "See whether it is up, and reached from here"),
    ("no route to host", "no route leads there", "See whether it is up, and reached from here"),
    ("connection closed", "it closed the connection", "See its sshd's log"),
)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--ssh {command[:80]!r} has no meaning: {error}") from None


def _environ_here() -> dict[str, str]:
    """This process's environment without what is about itself: its login, and its rank, if it has one."""
    return {name: value for name, value in os.environ.items() if name not in _ABOUT_US}


class Shell:
    """One agent's process here, and its pipes.

    Args:
        host: where it runs.
        ssh: the command, 'ssh -p 2222'.
        python: path of the interpreter there.
        output: shows every line of the agent's stdout that is no message.
        errors: shows every line of its stderr.

    Attributes:
        messages: that have come and nobody has taken; None once there come no more.
        heard: a message has come: what is on stderr from here on is the job's.
        address: of the host, as the launcher's ssh came to it; '' where it did not, or has not said so.
        node: its number in the job, once it has its task.
        met: it has met the other nodes' agents.
        muted: what it says on stderr is shown no more.
    """

    def __init__(
        self,
        host: Host,
        ssh: str,
        python: str,
        output: Console,
        errors: Console,
    ) -> None:
        self.host = host
        self._ssh = ssh
        self._python = python
        self._output = output
        self._errors = errors
        self._last: list[str] = []
        self._process: asyncio.subprocess.Process | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self.heard = False
        self.address = ""
        self.node: int | None = None
        self.met = False
        self.muted = False

    @property
    def code(self) -> int | None:
        """Exit code of the process here; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start it. `RendezvousError` where there is no ssh here."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                env=_environ_here() if self.is_here else None,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is passed on in a message, and ends no ssh
                limit=LONGEST,
            )
        except FileNotFoundError:
            what = self._command()[0]
            hint = "Name the interpreter with --python" if self.is_here else "Install an ssh client"
            raise RendezvousError(f"{self.host.name}: there is no {what} here", hint=hint) from None
        except OSError as error:
            raise RendezvousError(
                f"{self.host.name}: {self._command()[0]} cannot be started ({describe(error)})"
            ) from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pumps = [
            asyncio.create_task(self._pump(self._process.stdout, self._heard_line, self._output)),
            asyncio.create_task(self._pump(self._process.stderr, self._heard_error, self._errors)),
        ]
        self._whole = asyncio.create_task(self._end(self._process))

    def say(self, message: Message) -> None:
        """Send a message; nothing happens where the agent is gone."""
        if self._process is None or self._process.stdin is None or self.code is not None:
            return
        if not self._process.stdin.is_closing():
            with suppress(OSError, RuntimeError):
                self._process.stdin.write(encode(message))

    async def gone(self) -> None:
        """Wait for the end of the process here, and of all that it has said."""
        if self._process is not None:
            await asyncio.shield(self._whole)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await process.wait()
        self.messages.put_nowait(None)

    def close_input(self) -> None:
        """End its stdin: it ends its workers at once."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, RuntimeError):
                self._process.stdin.close()

    def kill(self) -> None:
        """End the process here, and close its pipes: another one may hold their other ends."""
        if self._process is not None:
            self._process._transport.close()  # type: ignore[attr-defined]  # nothing else closes them
            for pump in self._pumps:
                pump.cancel()

    def why_gone(self) -> str:
        """The reason why an agent that was here is gone, as far as it is known."""
        if self.code == _SSH_FAILS and not self.is_here:
            return "ssh's connection ended"
        if self.code is not None and self.code < 0:
            return f"killed by {signal_name(-self.code)}"
        return f"it ended with code {self.code}"

    def failure(self) -> RendezvousError:
        """The error for an agent that has ended before it said a word: what is wrong with its host."""
        name, login = self.host.name, self.host.login
        said = " ".join(self._last).lower()
        if self.code == _SSH_FAILS and not self.is_here:
            for words, meaning, hint in _FOUND:
                if words in said:
                    return RendezvousError(f"{name}: {meaning}", hint=hint.format(name=login))
            return RendezvousError(f"{name}: ssh failed: {self._words()}", hint=f"Try: ssh {login} true")
        if self.code in _NOT_FOUND:
            return RendezvousError(
                f"{name}: there is no {self._python}", hint="Name the interpreter there with --python"
            )
        if "no module named" in said or "modulenotfounderror" in said:
            return RendezvousError(
                f"{name}: {self._python} has no aiodist",
                hint=f"Install it there: {self._python} -m pip install aiodist",
            )
        return RendezvousError(
            f"{name}: the agent ended with code {self.code}: {self._words()}", hint=f"Try: ssh {login} true"
        )

    def _words(self) -> str:
        return one_line(self._last[-1] if self._last else "it said nothing", 300)

    @property
    def is_here(self) -> bool:
        """Whether the host is this one, which needs no ssh."""
        names = (
            "localhost",
            "127.0.0.1",
            "::1",
            socket.gethostname(),
            socket.gethostname().partition(".")[0],
        )
        return self.host.name.strip("[]") in names

    def _command(self) -> list[str]:
        if self.is_here:
            return [self._python, "-P", "-u", "-m", _MODULE]
        # A master that we started would hold our pipes; one that is there already is welcome.
        options = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no")
        alive = ("-o", f"ServerAliveInterval={BEAT:.0f}", "-o", f"ServerAliveCountMax={SILENCE / BEAT:.0f}")
        there = f"exec {shlex.quote(self._python)} -P -u -m {_MODULE}"
        return [*_words(self._ssh), *options, *alive, self.host.login, there]

    async def _pump(
        self, stream: asyncio.StreamReader, take: Callable[[bytes], None], console: Console
    ) -> None:
        while True:
            if console.full:  # who reads slowly holds up the workers, and nothing else
                room = asyncio.Event()
                console.when_room(room.set)
                await room.wait()
            try:
                line = await stream.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    take(error.partial)
                return
            except asyncio.LimitOverrunError as error:  # a line without end goes on in pieces
                line = await stream.readexactly(error.consumed)
            take(line)

    def _heard_line(self, line: bytes) -> None:
        if not line.startswith(MARK):
            if self.heard:  # before it is what a login shell says
                self._output.line(b"", line.rstrip(b"\n"))
            return
        with suppress(WireError):
            self.messages.put_nowait(decode(line[1:]))
            self.heard = True

    def _heard_error(self, line: bytes) -> None:
        if not self.heard:  # afterwards it is the job's, and says nothing of the host
            self._last = [*self._last[1 - _KEPT :], line.decode(errors="replace").strip()]
        elif not self.muted:
            self._errors.line(b"", line.rstrip(b"\n"))
