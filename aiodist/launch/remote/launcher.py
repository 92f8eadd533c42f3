"""The launcher: an agent on each host, one job, one verdict, one exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from aiodist.base.environment import is_loopback
from aiodist.base.environment.process import signal_name
from aiodist.base.errors import AiodistError, RendezvousError
from aiodist.base.sanitize import one_line
from aiodist.launch.remote.discovery import Discovery
from aiodist.launch.remote.hosts import Host
from aiodist.launch.remote.messages import BEAT, Address, Began, Hello, Over, Signal, Task
from aiodist.launch.remote.plan import Plan
from aiodist.launch.remote.shell import Shell
from aiodist.launch.worker.output import open_consoles
from aiodist.net.tasks import Tasks, cancel
from aiodist.net.within import within

_PATIENCE = 5.0  # seconds before we say whom we wait for
_OTHERS = 1.0  # seconds for other hosts to fail, too, so that all are named at once
_NAMED = 10  # hosts of which each error is shown
_PARTING = 5.0  # seconds for agents to end
_LONGEST = 2000
_MOST_LINES = 500  # of a verdict
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
        self._started: list[Shell] = []  # in the order of their hosts
        self._nodes: list[Shell] = []  # those that have their task, by node; none is given twice
        self._tasks = Tasks()
        self._greetings: set[asyncio.Task[None]] = set()
        self._follows: set[asyncio.Task[None]] = set()
        self._ends: dict[int, Over] = {}  # by node, in the order in which they came
        self._address = ""  # where node 0 listens
        self._signum = 0
        self._asks = 0
        self._discovery = (
            Discovery(plan.discovery, plan.hosts, plan.include, plan.exclude) if plan.discovery else None
        )

    @property
    def _began(self) -> bool:
        """Whether the nodes have met, and workers run."""
        return any(shell.met for shell in self._nodes)

    async def run(self) -> int:
        """Run the job; the whole life of the launcher."""
        loop = asyncio.get_running_loop()
        self._out, self._err = open_consoles(loop)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # by nohup, say: it shall not end us
                loop.add_signal_handler(number, self._asked, number)
        self._tasks.start(self._beat())
        try:
            await self._start_all(self._plan.hosts)
            if self._discovery is not None and not self._signum:
                self._tasks.start(self._look_for_hosts(self._discovery))
            while alive := [task for task in self._follows if not task.done()]:
                await asyncio.wait(alive)
            return self._judge()
        finally:
            await self._out.flush(_LAST_FLUSH)
            await self._err.flush(_LAST_FLUSH)
            await cancel(*self._tasks)
            await self._end()

    # -- the beginning --------------------------------------------------------------------------

    async def _start_all(self, hosts: Sequence[Host]) -> None:
        """Start the job's first agents.

        Raises:
            RendezvousError: a host cannot be used, or too few of those that come and go.
        """
        ready, errors = await self._start(hosts, all_of_them=self._discovery is None)
        if errors and (self._discovery is None or len(ready) < self._plan.least):
            *others, last = list(errors.values())[:_NAMED]
            for error in others:
                self._say(f"error: {error}")
            if len(errors) > _NAMED:
                self._say(f"{len(errors)} hosts cannot be used; these are some")
            raise last
        self._forget(errors)
        self._give_tasks(ready)

    async def _start(
        self, hosts: Sequence[Host], *, all_of_them: bool
    ) -> tuple[list[Shell], dict[Host, AiodistError]]:
        """Start an agent on each of these → those that can be used, and what is wrong with other hosts.

        A signal before the job has begun ends the wait; nobody can be used then.

        Args:
            hosts: which.
            all_of_them: they are of no use without each other: the first error ends the wait.
        """
        shells = [Shell(host, self._plan.ssh, self._plan.python, self._out, self._err) for host in hosts]
        self._started += shells
        loop = asyncio.get_running_loop()
        late = loop.call_later(_PATIENCE, self._say_late, shells)
        greetings = [loop.create_task(self._greet(shell)) for shell in shells]
        self._greetings.update(greetings)
        until = asyncio.FIRST_EXCEPTION if all_of_them else asyncio.ALL_COMPLETED
        try:
            _, left = await asyncio.wait(greetings, return_when=until)
            if left:
                await asyncio.wait(left, timeout=_OTHERS)
        finally:
            late.cancel()
            await cancel(*greetings)
            self._greetings.difference_update(greetings)
        if self._signum:
            return [], {}
        ready: list[Shell] = []
        errors: dict[Host, AiodistError] = {}
        for shell, greeting in zip(shells, greetings, strict=True):
            if greeting.cancelled():  # the first error came before its word
                continue
            if isinstance(error := greeting.exception(), AiodistError):
                errors[shell.host] = error
            else:
                greeting.result()
                ready.append(shell)
        return ready, errors

    async def _greet(self, shell: Shell) -> None:
        """Start an agent, and hear which aiodist is there."""
        silent = partial(
            RendezvousError,
            f"no agent on {shell.host.name} said a word within {self._plan.timeout:g} s",
            hint=f"See whether `ssh {shell.host.login} true` ends soon; --start-timeout gives more time",
        )
        async with within(self._plan.timeout, silent):
            await shell.start()
            hello = await shell.messages.get()
        if hello is None:
            raise shell.failure()
        if not isinstance(hello, Hello):
            raise RendezvousError(f"{shell.host.name}: what answers there is no agent of aiodist's")
        if hello.version != self._plan.version:
            raise RendezvousError(
                f"{shell.host.name} has aiodist {one_line(hello.version, 40)}, and this host "
                f"{self._plan.version}",
                hint="Install the same on every host",
            )
        shell.address = hello.address

    def _give_tasks(self, ready: Sequence[Shell]) -> None:
        """Make these agents nodes of the job."""
        for shell in ready:
            node = shell.node = len(self._nodes)
            self._nodes.append(shell)
            others = [_reached_at(other, shell) for other in ready if other is not shell and node == 0]
            shell.say(self._task(node, shell.host, filter(None, others)))
            self._follows.add(asyncio.create_task(self._follow(node, shell)))
        self._say_address()

    def _task(self, node: int, host: Host, others: Iterable[str]) -> Task:
        plan = self._plan
        environ = dict(plan.environ)
        if host.devices:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, host.devices))
        workers = str(host.slots) if host.slots else plan.nproc
        first = [f"--local-addr={plan.local_addr}"] if node == 0 and plan.local_addr else []
        return Task(
            argv=("--nproc-per-node", workers, *first, *plan.argv),
            environ=environ,
            folder=plan.folder,
            name=host.shown,
            node=node,
            nodes=plan.least or len(plan.hosts),
            most=plan.most,
            others=tuple(others),
        )

    def _say_late(self, shells: Sequence[Shell]) -> None:
        silent = [shell.host.name for shell in shells if not shell.heard]
        if silent:
            self._say(
                f"waiting for {', '.join(silent)}; {len(shells) - len(silent)} of {len(shells)} are here"
            )

    # -- while it runs --------------------------------------------------------------------------

    async def _follow(self, node: int, shell: Shell) -> None:
        """Do what an agent's messages ask for, to its end."""
        while (message := await shell.messages.get()) is not None:
            match message:
                case Address(address) if node == 0:
                    self._address = address
                    self._say_address()
                case Began():
                    shell.met = True
                    shell.muted = shell.muted and not self._signum
                case Over():
                    self._over(node, shell, message)
        if node not in self._ends and not self._signum and not shell.muted:
            self._say(f"{shell.host.name}: its agent is gone ({shell.why_gone()})")
        if not self._began and (node == 0 or not self._plan.most):  # the others would wait for it
            self._dismiss(other for other in self._nodes if other is not shell)
        if self._discovery is not None and not shell.muted:  # it may come again
            self._discovery.forget(shell.host)

    def _over(self, node: int, shell: Shell, over: Over) -> None:
        """Note that an agent's part is over, and perhaps the job. Who does not end then itself is ended."""
        self._ends[node] = over if 0 <= over.code <= 255 else replace(over, code=1)
        loop = asyncio.get_running_loop()
        loop.call_later(_PARTING, self._part, shell)
        if self._began and not shell.met:  # one that came later, and was of no use
            self._show(over.verdict)
            return
        if node == 0:  # who is on the way to it comes too late
            self._dismiss(other for other in self._nodes[1:] if not other.met)
        others = [other for other in self._nodes if other.code is None]
        if node == 0 or not self._plan.most or others == self._nodes[:1]:
            for other in others:  # an agent that is stopped, say: it is lost to the others, and they go on
                loop.call_later(2 * _PARTING, self._part, other)

    def _part(self, shell: Shell) -> None:
        """Close the pipes of an agent that is through, which another process there may hold open."""
        if self._err.full or self._out.full:  # somebody reads slowly: it may not be heard to its end yet
            asyncio.get_running_loop().call_later(_PARTING, self._part, shell)
        else:
            shell.kill()

    def _dismiss(self, shells: Iterable[Shell]) -> None:
        """End agents, of which nothing more is shown."""
        for shell in shells:
            shell.muted = True
            shell.close_input()
            asyncio.get_running_loop().call_later(_PARTING, self._part, shell)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            self._say_address()

    def _say_address(self) -> None:
        """Tell all agents where node 0 listens, and that the launcher lives."""
        for shell in self._started:
            shell.say(Address(self._address))

    def _asked(self, number: int) -> None:
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            self._signum = number
            self._asks += 1
        for shell in self._nodes:
            shell.say(Signal(signal.Signals(number).name))
        if self._signum and not self._began:
            self._dismiss(shell for shell in self._started if shell.node is None)
            for shell in self._nodes:
                shell.muted = True  # one line of ours says it
            for greeting in self._greetings:
                greeting.cancel()
        if self._asks >= _IMPATIENT:
            self._dismiss(self._started)
            for shell in self._started:
                shell.kill()
        if self._signum:  # who reads nothing more holds up nobody who is to end
            asyncio.get_running_loop().call_later(_LAST_FLUSH, self._unstick)

    def _unstick(self) -> None:
        for console in (self._out, self._err):
            if console.full:
                console.drop()
        if any(shell.code is None for shell in self._started) or self._out.full:
            asyncio.get_running_loop().call_later(_LAST_FLUSH, self._unstick)

    # -- hosts that come and go -----------------------------------------------------------------

    async def _look_for_hosts(self, discovery: Discovery) -> None:
        """Start an agent on each host that comes, and end that of one that goes."""
        complaints: set[str] = set()  # said once
        while 0 not in self._ends:
            came, went = await discovery.changes(self._say)
            for host in went:
                for shell in self._nodes:
                    if shell.host.name == host.name and shell.code is None:
                        self._say(f"{host.name} is no host of the job any more")
                        self._dismiss([shell])
            if came:
                self._tasks.start(self._take(came, complaints))

    async def _take(self, hosts: Sequence[Host], complaints: set[str]) -> None:
        """Start agents on hosts that have come; those that are of no use are tried again later."""
        ready, errors = await self._start(hosts, all_of_them=False)
        if 0 in self._ends:
            return
        self._give_tasks(ready)
        for shell in ready:
            self._say(f"{shell.host.name} is a new host")
        self._forget(errors, complaints)

    def _forget(self, errors: Mapping[Host, AiodistError], complaints: set[str] | None = None) -> None:
        """End the agents of hosts that are of no use now, and have these tried again later."""
        assert self._discovery is not None or not errors
        for host, error in errors.items():
            if complaints is None or str(error) not in complaints:
                self._say(f"{error}; it is tried again")
            if complaints is not None:
                complaints.add(str(error))
            refused = [shell for shell in self._started if shell.host is host and shell.node is None]
            self._dismiss(refused)
            for shell in refused:
                shell.kill()
                self._started.remove(shell)
            if self._discovery is not None:
                self._discovery.forget(host)

    # -- the end --------------------------------------------------------------------------------

    def _judge(self) -> int:
        """The verdict of the node that decides; of another one, where that is gone."""
        if self._signum and not self._began:
            self._say(f"stopped by {signal_name(self._signum)} before the job began")
            return 128 + self._signum
        # Who has failed before all had met is the first that came; afterwards node 0 decides.
        for over in (dict(sorted(self._ends.items())) if self._began else self._ends).values():
            self._show(over.verdict)
            return over.code
        if self._signum:
            self._say(f"stopped by {signal_name(self._signum)}")
            return 128 + self._signum
        codes = [code for shell in self._nodes if (code := shell.code)]
        self._say("every agent is gone, and none has said how the job ended")
        return codes[0] if codes and codes[0] > 0 else 1

    async def _end(self) -> None:
        """End every agent that still runs: its stdin ends, and then it has a moment."""
        for shell in self._started:
            shell.close_input()
            if shell.node is None:  # it has nothing to end
                shell.kill()
        ends = [asyncio.create_task(shell.gone()) for shell in self._started]
        if ends:
            await asyncio.wait(ends, timeout=_PARTING)
        for shell in self._started:
            shell.kill()
        await asyncio.gather(*ends)

    def _show(self, verdict: str) -> None:
        for line in verdict.replace("aiodist run:", "aiodist launch:").splitlines()[:_MOST_LINES]:
            self._err.line(b"", one_line(line, _LONGEST).encode())

    def _say(self, text: str) -> None:
        self._err.line(b"", f"aiodist launch: {one_line(text, _LONGEST)}".encode())


def _reached_at(shell: Shell, first: Shell) -> str:
    """The address of a host as the first one reaches it, or its name; '': nobody knows."""
    if shell.address and not is_loopback(shell.address):
        return shell.address
    if shell.is_here:  # another host has none for it but the one that the launcher's ssh comes from
        return "127.0.0.1" if first.is_here else ""
    return shell.host.login.rpartition("@")[2]
