"""One group on one rank, as operations of an engine need it: the engine, and the copies before and after."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.backends.foreign.engine import Engine
from aiodist.backends.foreign.task import Task
from aiodist.backends.host.channels import Channels


class EngineGroup:
    """The engine of one group, and how far the group goes on.

    Args:
        channels: of the group.
        engine: made for it.

    Attributes:
        dead: the group has broken.
        halted: it is about to: members disagree.
    """

    def __init__(self, channels: Channels, engine: Engine) -> None:
        self.channels = channels
        self.engine = engine
        self.dead = False
        self.halted = False

    @property
    def stopped(self) -> bool:
        """Whether the group has broken, or is about to: nothing goes on."""
        return self.dead or self.halted

    def fill(self, task: Task, done: Callable[[], None]) -> None:
        """Copy what the engine reads to where it reads it; `done` follows, perhaps at once."""
        if self.engine.stages:
            done()
        else:
            self._off_loop(task.fill_ns(), task.fill, done)

    def drain(self, task: Task, done: Callable[[], None]) -> None:
        """Copy what the engine has written to the user's tensor."""
        if self.engine.stages:
            done()
        else:
            self._off_loop(task.empty_ns(), task.empty, done)

    def _off_loop(self, cost: float, job: Callable[[], None], done: Callable[[], None]) -> None:
        if not cost:
            job()
            done()
            return

        def over() -> None:
            if not self.dead:
                done()

        if self.channels.off_loop(cost, job, over):
            over()
