"""What `coalesce` collects: operations that have their numbers and begin together."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from aiodist.backends.base import Operation
from aiodist.errors import UsageError
from aiodist.types import Kind
from aiodist.work import Work

if TYPE_CHECKING:
    from aiodist.group.core import GroupCore


class Batch:
    """What `coalesce` gives: an async context manager that holds operations back until it is left."""

    def __init__(self, group: GroupCore) -> None:
        self.group = group
        self.works: list[Work[Any]] = []
        self._operations: list[tuple[Operation, float]] = []
        self._token: Token[Batch | None] | None = None

    def add(self, operation: Operation, timeout: float) -> None:
        """Hold an operation back."""
        operation.work._held_back = True
        if operation.call.kind is not Kind.send and operation.call.kind is not Kind.recv:
            self.group._backend.reserve(operation.call.seq, operation)
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
        self.group._backend.batch(True)
        try:
            for operation, timeout in self._operations:
                operation.work._held_back = False
                if self.group._error is None:
                    self.group._start(operation, timeout)
                else:
                    self.group._refuse(operation.work)
        finally:
            self.group._backend.batch(False)
        waited = [work for work in self.works if not work._awaited]
        if kind is None:
            for work in waited:
                await work
        for work in waited:
            work._awaited = True  # the block was the await


current: ContextVar[Batch | None] = ContextVar("aiodist_batch", default=None)
"""The batch that this task collects in."""
