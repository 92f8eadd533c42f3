"""A library of MPI that does what a test says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiodist.backends.mpi.progress import MpiJob, Posted


@dataclass(eq=False)
class Request:
    """One request.

    Attributes:
        over: it has ended.
        error: … like this.
        looks: how often it is still to be looked at before it ends; None: until `over` is set.
        cancelled: it was taken back.
    """

    over: bool = False
    error: Exception | None = None
    looks: int | None = None
    cancelled: bool = False

    def Cancel(self) -> None:  # noqa: N802 - mpi4py's name
        self.cancelled = self.over = True


@dataclass
class Mpi:
    """What `MpiProgress` asks."""

    looks: int = 0
    seen: list[int] = field(default_factory=list)

    def test(self, requests: list[Any], posted: Sequence[Posted]) -> list[tuple[int, Exception | None]]:
        assert [each.request for each in posted] == requests
        self.looks += 1
        self.seen.append(len(requests))
        for request in requests:
            if request.looks is not None:
                request.looks -= 1
                request.over = request.over or request.looks <= 0
        return [(index, request.error) for index, request in enumerate(requests) if request.over]


@dataclass
class Heard:
    """What a job told."""

    done: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def job(self, name: str, *requests: Any, owner: object = "group") -> MpiJob:
        """A job that posts these; an exception among them is raised there. A request may be (request, True):
        it receives."""

        def post() -> Iterator[Posted]:
            for request in requests:
                if isinstance(request, Exception):
                    raise request
                if isinstance(request, tuple):
                    yield Posted(request[0], "BYTE", 3)
                else:
                    yield Posted(request)

        return MpiJob(
            owner,
            post,
            lambda: self.done.append(name),
            lambda error: self.failed.append(f"{name}: {error}"),
        )
