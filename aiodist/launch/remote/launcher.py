"""The launcher: an agent on each host, one job, one verdict, one exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiodist.errors import AiodistError, RendezvousError
from aiodist.launch.remote.discovery import Discovery
from aiodist.launch.remote.hosts import Host
from aiodist.launch.remote.messages import (
    BEAT,
    PROTOCOL,
    Address,
    Beat,
    Began,
    Hello,
    Over,
    Signal,
    Task,
    Told,
)
from aiodist.launch.remote.plan import Plan
from aiodist.launch.remote.shell import Shell
from aiodist.launch.worker.output import open_consoles
from aiodist.sanitize import one_line

_PATIENCE = 5.0  # seconds before we say whom we wait for
_PARTING = 5.0  # seconds for agents to end after one was refused
_LONGEST = 2000
_IMPATIENT = 3  # signals until agents that do not answer are left to themselves
_LAST_FLUSH = 5.0  # seconds for a stuck console
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def run(plan: Plan) -> int:
    """Launch the job → its exit code.

    Raises:
        RendezvousError: a host cannot be used; no worker was started.
    """
    return asyncio.run(Launcher(plan).run())


class Launcher:
    """One job on several hosts."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shells: dict[int, Shell] = {}  # by node, which is never given twice
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ends: dict[int, Over] = {}
        self._address = ""
        self._first_at = ""
        self._began = False
        self._signum = 0
        self._asks = 0
        self._follows: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Run the job; the whole life of the launcher."""
        loop = asyncio.get_running_loop()
        self._out, self._err = open_consoles(loop)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # by nohup, say: it shall not end us
                loop.add_signal_handler(number, self._asked, number)
        beat = loop.create_task(self._beat())
        try:
            await self._start([*enumerate(self._plan.hosts)])
            if self._plan.discovery and not self._signum:
                self._tasks.add(loop.create_task(self._look_for_hosts()))
            while alive := [task for task in self._follows if not task.done()]:
                await asyncio.wait(alive)
            return self._judge()
        except RendezvousError:
            if not self._signum:
                raise
            return self._judge()
        finally:
            await self._out.flush(_LAST_FLUSH)
            await self._err.flush(_LAST_FLUSH)
            beat.cancel()
            for task in self._tasks:
                task.cancel()
            await self._end()

    # -- the beginning --------------------------------------------------------------------------

    async def _start(self, hosts: Sequence[tuple[int, Host]]) -> None:
        """Start an agent on each of these, and give each its task when all have said a word."""
        shells = {node: self._shell(host) for node, host in hosts}
        self._shells |= shells
        late = asyncio.get_running_loop().call_later(_PATIENCE, self._say_late, shells)
        try:
            async with asyncio.timeout(self._plan.timeout):
                hellos = await asyncio.gather(*(self._greet(shell) for shell in shells.values()))
        except TimeoutError:
            silent = ", ".join(shell.host.name for shell in shells.values() if not shell.heard)
            raise RendezvousError(
                f"no agent on {silent} said a word within {self._plan.timeout:g} s",
                hint="See whether `ssh HOST true` ends soon; --start-timeout gives more time",
            ) from None
        finally:
            late.cancel()
        self._check_signal()
        for (node, host), hello in zip(hosts, hellos, strict=True):
            if node == 0:
                self._first_at = hello.address
            self._shells[node].say(self._task(node, host))
            self._follows.add(asyncio.create_task(self._follow(node, self._shells[node])))

    def _check_signal(self) -> None:
        if self._signum:
            raise RendezvousError("stopped before the job began")

    def _shell(self, host: Host) -> Shell:
        plan = self._plan
        return Shell(host, plan.ssh, plan.python, self._out, self._err)

    async def _greet(self, shell: Shell) -> Hello:
        """Start an agent, and hear which aiodist is there."""
        await shell.start()
        self._check_signal()  # who was asked to end before could not be told
        self._tasks.add(asyncio.create_task(shell.ended()))
        hello = await shell.messages.get()
        if hello is None:
            raise shell.failure()
        if not isinstance(hello, Hello):
            raise RendezvousError(f"{shell.host.name}: what answers there is no agent of aiodist's")
        if (hello.version, hello.protocol) != (self._plan.version, PROTOCOL):
            raise RendezvousError(
                f"{shell.host.name} has aiodist {one_line(hello.version, 40)}, and this host "
                f"{self._plan.version}",
                hint="Install the same on every host",
            )
        return hello

    def _task(self, node: int, host: Host) -> Task:
        plan = self._plan
        environ = dict(plan.environ)
        if host.devices:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, host.devices))
        workers = str(host.slots) if host.slots else plan.nproc
        return Task(
            argv=["--nproc-per-node", workers, *plan.argv],
            environ=environ,
            folder=plan.folder,
            name=host.shown,
            node=node,
            nodes=plan.least or len(plan.hosts),
            most=plan.most,
            listen=self._first_at if node == 0 else "",
            address=self._address,
        )

    def _say_late(self, shells: Mapping[int, Shell]) -> None:
        silent = [shell.host.name for shell in shells.values() if not shell.heard]
        if silent:
            self._say(
                f"waiting for {', '.join(silent)}; {len(shells) - len(silent)} of {len(shells)} are here"
            )

    # -- while it runs --------------------------------------------------------------------------

    async def _follow(self, node: int, shell: Shell) -> None:
        """Do what an agent's messages ask for, to its end."""
        while (message := await shell.messages.get()) is not None:
            match message:
                case Told(address) if node == 0:
                    self._address = address
                    for other in self._shells.values():
                        other.say(Address(address))
                case Began():
                    self._began = True
                case Over():
                    self._ends[node] = message
        if node not in self._ends and not self._signum and not shell.muted:
            self._say(f"{shell.host.name}: its agent is gone ({self._why(shell)})")
        if not self._began:  # the others would wait for it
            for other in self._shells.values():
                if other is not shell:
                    other.muted = True
                    other.close_input()

    def _why(self, shell: Shell) -> str:
        return shell.failure().message.partition(": ")[2]

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            for shell in self._shells.values():
                shell.say(Beat())

    def _asked(self, number: int) -> None:
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            self._signum = number
            self._asks += 1
        for shell in self._shells.values():
            shell.say(Signal(number))
        if self._asks >= _IMPATIENT or (self._signum and not self._began):
            for shell in self._shells.values():
                shell.muted = True
                shell.close_input()
        if self._asks >= _IMPATIENT:
            for shell in self._shells.values():
                shell.kill()
        if self._signum:  # who reads nothing more holds up nobody who is to end
            asyncio.get_running_loop().call_later(_LAST_FLUSH, self._unstick)

    def _unstick(self) -> None:
        for console in (self._out, self._err):
            if console.full:
                console.drop()
        if any(shell.code is None for shell in self._shells.values()) or self._out.full:
            asyncio.get_running_loop().call_later(_LAST_FLUSH, self._unstick)

    async def _look_for_hosts(self) -> None:
        """Start an agent on each host that comes, and end that of one that goes."""
        plan = self._plan
        discovery = Discovery(plan.discovery, plan.hosts, plan.include, plan.exclude)
        node = len(plan.hosts)
        complaints: set[str] = set()  # said once
        while True:
            came, went = await discovery.changes(self._say)
            for host in went:
                for shell in self._shells.values():
                    if shell.host.name == host.name and shell.code is None:
                        self._say(f"{host.name} is no host of the job any more")
                        shell.muted = True
                        shell.close_input()
            for host in came:
                try:
                    await self._start([(node, host)])
                    self._say(f"{host.name} is a new host")
                except AiodistError as error:
                    if str(error) not in complaints:
                        complaints.add(str(error))
                        self._say(f"{error}; it is tried again")
                    await self._drop(self._shells.pop(node))
                    discovery.forget(host)
                node += 1

    async def _drop(self, shell: Shell) -> None:
        """End an agent that was refused."""
        shell.muted = True
        shell.close_input()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PARTING):
                await shell.gone()
        shell.kill()

    # -- the end --------------------------------------------------------------------------------

    def _judge(self) -> int:
        """The verdict of the node that decides; of another one, where that is gone."""
        if self._signum and not self._began:
            self._say(f"stopped by {signal.Signals(self._signum).name} before the job began")
            return 128 + self._signum
        # Who has failed before all had met is the first that came; afterwards node 0 decides.
        for over in (dict(sorted(self._ends.items())) if self._began else self._ends).values():
            for line in over.verdict.replace("aiodist run:", "aiodist launch:").splitlines():
                self._err.line(b"", line.encode())
            return over.code
        if self._signum:
            self._say(f"stopped by {signal.Signals(self._signum).name}")
            return 128 + self._signum
        codes = [code for shell in self._shells.values() if (code := shell.code)]
        self._say("every agent is gone, and none has said how the job ended")
        return codes[0] if codes and codes[0] > 0 else 1

    async def _end(self) -> None:
        """End every agent that still runs: its stdin ends, and then it has a moment."""
        for shell in self._shells.values():
            shell.close_input()
        alive = [shell for shell in self._shells.values() if shell.code is None]
        with suppress(TimeoutError):
            async with asyncio.timeout(_PARTING):
                await asyncio.gather(*(shell.gone() for shell in alive))
        for shell in alive:
            shell.kill()

    def _say(self, text: str) -> None:
        self._err.line(b"", f"aiodist launch: {one_line(text, _LONGEST)}".encode())
