"""Hosts that come and go, as a script says. It is run again and again, and prints a line for each host."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from aiodist.base.errors import UsageError
from aiodist.base.sanitize import one_line
from aiodist.launch.remote.hosts import Host, chosen, from_file
from aiodist.launch.worker.descendants import die_with_parent
from aiodist.net.within import within

_PAUSE = 1.0  # seconds between two runs
_AGAIN = 30  # runs until a host that could not be used is tried again
_PATIENCE = 30.0  # seconds for one
_LOOK = 0.02  # seconds between two looks whether it has ended
_LONGEST = 1 << 20


class Discovery:
    """The hosts of the moment.

    Args:
        command: of the script, with its arguments.
        known: hosts that the job has already.
        include, exclude: filters, as of `hosts.chosen`; they may name hosts that are not there now.
    """

    def __init__(self, command: str, known: Sequence[Host], include: str = "", exclude: str = "") -> None:
        self._command = command
        self._filters = include, exclude
        self._known = {host.name: host for host in known}
        self._complaint = ""
        self._shunned: dict[str, int] = {}  # and for how many runs more

    async def changes(self, say: Callable[[str], None]) -> tuple[list[Host], list[Host]]:
        """Wait until hosts have come or gone → those that came, those that went.

        A script that fails changes nothing; `say` is told once.
        """
        while True:
            await asyncio.sleep(_PAUSE)
            try:
                named = await hosts_now(self._command)
                found = {host.name: host for host in chosen(named, *self._filters, strict=False)}
            except UsageError as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    say(str(error))
                continue
            self._shunned = {name: runs - 1 for name, runs in self._shunned.items() if runs > 1}
            found = {name: host for name, host in found.items() if name not in self._shunned}
            came = [host for name, host in found.items() if name not in self._known]
            went = [host for name, host in self._known.items() if name not in found]
            if came or went:
                self._known = found
                return came, went

    def forget(self, host: Host) -> None:
        """Forget a host that could not be used; after a while it is tried again."""
        self._known.pop(host.name, None)
        self._shunned[host.name] = _AGAIN


async def hosts_now(command: str) -> list[Host]:
    """Run the script once → the hosts that it names.

    Raises:
        UsageError: it cannot be run, fails, takes too long, or what it prints has no meaning.
    """
    shown = f"--host-discovery-script {command[:80]}"
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(  # noqa: ASYNC220  (milliseconds; its pipes would be its children's, too)
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=errors,
                start_new_session=True,  # so that what it leaves behind can be ended
                preexec_fn=die_with_parent(),
            )
        except (OSError, IndexError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it names no command"
            raise UsageError(f"{shown} cannot be run: {why}") from None
        try:
            async with within(_PATIENCE, partial(UsageError, f"{shown} takes longer than {_PATIENCE:g} s")):
                while not _has_ended(process):  # noqa: ASYNC110  (nothing tells it without its pipes)
                    await asyncio.sleep(_LOOK)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        errors.seek(0)
        said.seek(0)
        if code:
            why = one_line(errors.read(_LONGEST), 200)
            raise UsageError(f"{shown} failed with code {code}: {why}")
        return from_file(said.read(_LONGEST).decode(errors="replace"), shown)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child has ended. Its number stays its own until it is waited for, where that can be asked."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None
