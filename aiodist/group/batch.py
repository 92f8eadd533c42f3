"""What `coalesce` collects: operations that have their numbers and begin together."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

from aiodist.backends.base import Backend, Operation
from aiodist.errors import UsageError
from aiodist.types import Kind
from aiodist.work import Work


class Batch:
    """What `coalesce` gives: an async context manager that holds operations back until it is left.

    Args:
        group: whose operations it holds back.
        backend: the group's.
        begin: starts one, with its timeout.
    """

    def __init__(self, group: object, backend: Backend, begin: Callable[[Operation, float], None]) -> None:
        self.group = group
        self._backend = backend
        self._begin = begin
        self.works: list[Work[Any]] = []
        self._operations: list[tuple[Operation, float]] = []
        self._token: Token[Batch | None] | None = None

    def add(self, operation: Operation, timeout: float) -> None:
        """Hold an operation back."""
        operation.work._held_back = True
        if operation.call.kind is not Kind.send and operation.call.kind is not Kind.recv:
            self._backend.reserve(operation.call.seq, operation)
        self.works.append(operation.work)
        self._operations.append((operation, timeout))

    async def __aenter__(self) -> Batch:
        if self._token is not None:
            raise UsageError("a batch is used once", hint="Call coalesce() again")
        self._token = current.set(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        assert self._token is not None
        current.reset(self._token)
        self._backend.batch(True)
        try:
            for operation, timeout in self._operations:
                operation.work._held_back = False
                self._begin(operation, timeout)
        finally:
            self._backend.batch(False)
        waited = [work for work in self.works if not work._awaited]
        if kind is None:
            for work in waited:
                await work
        for work in waited:
            work._awaited = True  # the block was the await


current: ContextVar[Batch | None] = ContextVar("aiodist_batch", default=None)
"""The batch that this task collects in."""
