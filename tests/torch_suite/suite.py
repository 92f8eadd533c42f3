"""torch's class of tests, whose processes are forks of one that has loaded torch already."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


def _run_with(environ: dict[str, str], target: Callable[..., None], *args: Any, **more: Any) -> None:
    """Run a target in this environment: the server's is that of the first test."""
    os.environ.clear()
    os.environ.update(environ)
    target(*args, **more)


class TestBackend(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
    """Each test with WORLD_SIZE processes, on the backend that BACKEND names."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.torch_suite.suite"])
        environ = dict(os.environ)

        def process(target: Callable[..., None], **more: Any) -> Any:
            return context.Process(target=partial(_run_with, environ, target), **more)

        self._start_processes(process)
