"""The communicator of a group, where the library makes none. The library is a fake."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.backends.mpi.communicator import create
from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.process import this
from aiodist.base.errors import GroupBroken


class MpiError(RuntimeError):
    """mpi4py.MPI.Exception."""


class Group:
    """MPI's set of processes."""

    def Incl(self, ranks: list[int]) -> Group:  # noqa: N802 - mpi4py's names
        return self

    def Free(self) -> None:  # noqa: N802
        """Nothing is held."""


def library(says: str) -> Library:
    """A library whose communicators are used up, as it says itself."""

    def refuse(group: Group, tag: int) -> None:
        raise MpiError(says)

    everybody = SimpleNamespace(Get_group=Group, Create_group=refuse)
    return Library(SimpleNamespace(Exception=MpiError, COMM_WORLD=everybody), 0, 2, False, 7)


@pytest.mark.parametrize(
    ("says", "word"),
    [
        ("Other MPI error, error stack:\ncreate(96)...: \nget(567): Too many (0/2048 free)", "Too many"),
        ("MPI_ERR_INTERN: internal error", "MPI_ERR_INTERN: internal error"),
        ("", ""),
    ],
)
async def test_library_that_makes_no_more_breaks_the_group_that_asks(says: str, word: str) -> None:
    at_once: Any = SimpleNamespace(call=lambda function: function())
    with pytest.raises(GroupBroken) as caught:
        await create(library(says), at_once, [0, 1], 5)
    assert caught.value.message.startswith(f"the MPI library makes no communicator for another group: {word}")
    assert "\n" not in str(caught.value)
    assert "Close groups that are done" in caught.value.hint


class Communicator:
    """MPI's communicator, of a library that has room for one."""

    def __init__(self, open_now: list[Communicator]) -> None:
        self._open = open_now

    def Set_errhandler(self, handler: object) -> None:  # noqa: N802
        """Nothing fails."""

    def Free(self) -> None:  # noqa: N802
        self._open.remove(self)


@pytest.mark.parametrize("multiple", [True, False])
async def test_what_was_given_back_before_has_room_for_the_next(
    monkeypatch: pytest.MonkeyPatch, multiple: bool
) -> None:
    open_now: list[Communicator] = []

    def give(group: Group, tag: int) -> Communicator:
        if open_now:
            raise MpiError("Too many")
        open_now.append(Communicator(open_now))
        return open_now[0]

    everybody = SimpleNamespace(Get_group=Group, Create_group=give)
    mpi = SimpleNamespace(Exception=MpiError, COMM_WORLD=everybody, ERRORS_RETURN=0)
    orders: deque[Callable[[], None]] = deque()
    progress: Any = SimpleNamespace(call=orders.append)
    monkeypatch.setattr(this, "aside", lambda function, name: function())

    async def created() -> Any:
        making = asyncio.create_task(create(Library(mpi, 0, 2, multiple, 7), progress, [0, 1], 5))
        await asyncio.sleep(0)
        while orders:  # the thread of all calls was busy until now
            orders.popleft()()
        return await making

    first = await created()
    progress.call(first.Free)
    second = await created()
    assert open_now == [second]
    assert second is not first
