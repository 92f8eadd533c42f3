"""The workers that are stopped (SIGSTOP, Ctrl-Z, a debugger): read from /proc, only to say it.

A stopped worker is no failure. But everybody waits for it, and nothing else would say why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiodist.base.environment.process import stat_fields

INTERVAL = 1.0  # seconds between two looks
_STOPPED = {"T": "is stopped (SIGSTOP, or Ctrl-Z)", "t": "is held by a debugger"}


def state_of(pid: int) -> str:
    """The letter that /proc shows, 'R' or 'T'; '' where it shows nothing."""
    try:
        return stat_fields(pid)[0]
    except (OSError, IndexError):
        return ""


class Stopped:
    """A record of who is stopped, so that each change is said once. Pure."""

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}  # rank → the process that is stopped

    def news(self, processes: Mapping[int, int], states: Iterable[tuple[int, str]]) -> list[str]:
        """Lines to say.

        Args:
            processes: rank → pid, of those that live.
            states: rank and letter, of the same.
        """
        lines = []
        for rank, state in states:
            pid = processes[rank]
            known = self._pids.get(rank) == pid
            if state in _STOPPED and not known:
                self._pids[rank] = pid
                lines.append(
                    f"rank {rank} (pid {pid}) {_STOPPED[state]}; the others wait for it. To let it go on: "
                    f"kill -CONT {pid}"
                )
            elif known and state and state not in _STOPPED:
                del self._pids[rank]
                lines.append(f"rank {rank} (pid {pid}) goes on")
        for rank in self._pids.keys() - processes.keys():
            del self._pids[rank]
        return lines
