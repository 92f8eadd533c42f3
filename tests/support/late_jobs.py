"""Jobs off the loop that take virtual time: a simulation does them at once, and so never sees a group that
breaks, or a call that is cancelled, while the thread still has jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from aiodist.backends.host.offload import Offload


@contextmanager
def late_jobs(seconds: float) -> Iterator[None]:
    """Have the jobs of each process end one after the other, so many virtual seconds apart."""
    free: dict[Offload, float] = {}

    def run(
        self: Offload,
        cost_ns: float,
        job: Callable[[], None],
        done: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> bool:
        def end() -> None:
            try:
                job()
            except Exception as error:
                failed(error)
            done()

        free[self] = max(free.get(self, 0.0), self._loop.time()) + seconds
        self._loop.call_at(free[self], end)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Offload, "run", run)
        yield
