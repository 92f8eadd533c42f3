"""Starting one worker: its environment, its files, and where its output goes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aiodist.base.terminal import hue, takes_colour
from aiodist.launch.config import LaunchConfig
from aiodist.launch.place import Place, worker_environment
from aiodist.launch.worker.alike import Alike
from aiodist.launch.worker.guardian import Order
from aiodist.launch.worker.lines import LastWords
from aiodist.launch.worker.logs import LogFiles, file_name
from aiodist.launch.worker.output import Console, Relay
from aiodist.launch.worker.spawner import Spawner
from aiodist.launch.worker.worker import Worker, spawn
from aiodist.observe.dumps import home, kept_name
from aiodist.observe.leaving import LOG_DIR

_GRACE = 2.0  # seconds, at most, for what a worker left behind
_MOST_KEPT = 16 << 20  # bytes of a stream that are kept for a dashboard, where nobody has asked for files


@dataclass
class AgentContext:
    """The parts that an agent has for all attempts: config, spawner, consoles, `say`, log files.

    `alike` shows errors; None: there is one worker. `began`: the time of day.
    """

    config: LaunchConfig
    spawner: Spawner
    out: Console
    err: Console
    say: Callable[[str], None]
    logs: LogFiles | None = None
    alike: Alike | None = None
    began: float = field(default_factory=time.time)

    def settle(self) -> None:
        """Show the errors that are held back."""
        if self.alike is not None:
            self.alike.flush()

    def records(self, job: str, run: str) -> Path | None:
        """The folder in which this run leaves what its ranks did last, and how it ended, if it fails. It is
        no other run's, and made when there is something to write. None: this user has no home."""
        if self.logs is not None:
            return Path(self.logs.folder)
        if self.config.log_dir is not None:
            return Path(self.config.log_dir, f"{file_name(job)}_{run}")
        try:
            return home(os.environ) / kept_name(run, self.began)
        except OSError:
            return None


def start_worker(context: AgentContext, place: Place, local_rank: int, restarts: int) -> Worker:
    """Start one worker of this node.

    Args:
        context: the agent's.
        place: of this node in the attempt.
        local_rank: of the worker.
        restarts: how many the job has used before this start.

    Raises:
        UsageError: the command cannot be run, or its files cannot be written.
    """
    env = worker_environment(os.environ, context.config, place, local_rank, restarts)
    if context.logs is not None:
        context.logs.prepare(restarts, local_rank)
        env["TORCHELASTIC_ERROR_FILE"] = context.logs.path(restarts, local_rank, "error.json")
    if records := context.records(place.job, place.run):
        env[LOG_DIR] = str(records)
    first = local_rank == 0 and place.node_rank == 0 and restarts == 0
    config = context.config
    grace = min(_GRACE, config.shutdown_timeout)
    order = Order(list(config.command), env, grace, config.leave_daemons)
    stdin = 0 if first and _stdin_is_for_workers() else None
    return spawn(order, context.spawner, stdin, partial(_relays, context, place, local_rank, restarts))


def _relays(
    context: AgentContext, place: Place, local_rank: int, restarts: int, out: int, err: int, words: LastWords
) -> list[Relay]:
    config, rank = context.config, place.first_rank + local_rank
    files = _log_files(context, local_rank, restarts)
    prefix = config.prefix_of(rank=rank, local_rank=local_rank, node_rank=place.node_rank, host=place.host)
    relays = []
    for fd, bit, console in ((out, 1, context.out), (err, 2, context.err)):
        alike = context.alike if bit == 2 else None
        painted = hue(rank, prefix, takes_colour(console.is_terminal, os.environ))
        relays.append(
            Relay(
                asyncio.get_running_loop(),
                fd,
                console=console if config.on_console(local_rank, bit) else None,
                prefix=painted.encode(),
                prefix_width=len(prefix),
                file=files.get(bit),
                most=_MOST_KEPT if config.dashboard and config.log_dir is None else None,
                words=words if bit == 2 else None,
                show=None if alike is None else partial(alike.write, rank),
                settle=context.settle,
            )
        )
    return relays


def _log_files(context: AgentContext, local_rank: int, restarts: int) -> dict[int, int]:
    """Descriptors of a worker's log files, by the bit of the stream; all of them, or none stays open."""
    opened: dict[int, int] = {}
    with ExitStack() as kept:
        for bit, name in ((1, "stdout.log"), (2, "stderr.log")):
            if context.logs is not None and context.config.filed(local_rank, bit):
                opened[bit] = context.logs.open(restarts, local_rank, name)
                kept.callback(os.close, opened[bit])
        kept.pop_all()
    return opened


def _stdin_is_for_workers() -> bool:
    """Whether stdin goes to rank 0: a file or a pipe does, as under mpirun; a terminal does not."""
    try:
        return sys.stdin is not None and not os.isatty(0)
    except OSError:
        return False
