"""What a process is told about its place, and where to meet."""

from __future__ import annotations

import ipaddress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiodist.backends.base import Array
from aiodist.backends.mpi import meeting
from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.meeting import check_place, is_told
from aiodist.backends.mpi.process import Process
from aiodist.errors import RendezvousError, RendezvousTimeout, UsageError


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "2", "WORLD_SIZE": "4"},
        {"RANK": "2"},
        {"WORLD_SIZE": "4"},
        {"RANK": "", "WORLD_SIZE": ""},
        {"AIODIST_RANK": "2", "RANK": "0"},
    ],
)
def test_place_that_is_mpis(environ: dict[str, str]) -> None:
    check_place(2, 4, -1, -1, environ)


@pytest.mark.parametrize(
    ("rank", "size", "environ", "said"),
    [
        (-1, -1, {"RANK": "1", "WORLD_SIZE": "4"}, "RANK=1, but this is rank 2 of 4 in MPI"),
        (-1, -1, {"RANK": "2", "WORLD_SIZE": "8"}, "WORLD_SIZE=8, but this is rank 2 of 4 in MPI"),
        (-1, -1, {"AIODIST_RANK": "0"}, "AIODIST_RANK=0, but"),
        (-1, -1, {"RANK": "two"}, "RANK=two, but"),
        (0, -1, {"RANK": "2"}, "rank=0, but"),
        (2, 3, {}, "world_size=3, but"),
    ],
)
def test_other_place_is_refused(rank: int, size: int, environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_place(2, 4, rank, size, environ)


def test_arguments_come_before_variables() -> None:
    check_place(2, 4, 2, 4, {"RANK": "0", "WORLD_SIZE": "9"})


def test_process_that_mpirun_did_not_start() -> None:
    with pytest.raises(UsageError, match=r"WORLD_SIZE=4, but MPI has this process alone.*mpirun"):
        check_place(0, 1, -1, -1, {"RANK": "0", "WORLD_SIZE": "4"})
    check_place(0, 1, -1, -1, {"RANK": "0", "WORLD_SIZE": "1"})


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_library_of_another_mpi_than_mpirun(name: str) -> None:
    with pytest.raises(UsageError, match=r"mpirun has started 4 processes.*MPI4PY_LIBMPI"):
        check_place(0, 1, -1, -1, {name: "4"})
    check_place(0, 1, -1, -1, {name: "1"})
    check_place(0, 4, -1, -1, {name: "4"})


def test_who_is_told_elsewhere() -> None:
    assert not is_told({"RANK": "1", "MASTER_ADDR": ""})
    assert is_told({"MASTER_ADDR": "10.0.0.1"})
    assert is_told({"AIODIST_STORE": "10.0.0.1:3"})


def told(words: bytes) -> Array:
    array = np.zeros(meeting._LONGEST, np.uint8)
    array[: len(words)] = np.frombuffer(words, np.uint8)
    return array


async def test_address_and_secret_arrive() -> None:
    server, words = await meeting._listen({}, together=True)
    assert server is not None
    address, key = meeting._read(told(words))
    assert address == f"127.0.0.1:{server.port}"
    assert len(bytes.fromhex(key)) == meeting._SECRET_BYTES
    await server.aclose()
    other, more = await meeting._listen({"AIODIST_HOST": "127.0.0.1"}, together=False)
    assert other is not None
    assert meeting._read(told(more))[1] != key, "a secret is made afresh"
    await other.aclose()


async def test_reason_arrives_where_rank_0_cannot_listen() -> None:
    server, words = await meeting._listen({"AIODIST_HOST": "192.0.2.7"}, together=True)
    assert server is None
    with pytest.raises(RendezvousError, match=r"rank 0 cannot host the store: cannot listen on 192\.0\.2\.7"):
        meeting._read(told(words))


class Alone(Process):
    """A process in which calls of MPI are posted, and never end."""

    def hold(self, library: Library) -> Any:
        return SimpleNamespace(post=lambda job: None, abandon=lambda owner, quiet: None)

    def release(self) -> None:
        """Nothing is held."""


async def test_process_that_gave_up_makes_no_more_calls_that_others_would_take_for_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting, "this", Alone())
    library = Library(None, 0, 2, True, 7)
    async with meeting._Talk(library, 60):
        """It ended well: there may be another."""
    with pytest.raises(RendezvousTimeout, match="not all 2 processes"):
        async with meeting._Talk(library, 0) as talk:
            await talk.do(lambda comm: None)
    with pytest.raises(RendezvousError, match=r"gave up meeting the MPI job before.*Start the job anew"):
        async with meeting._Talk(library, 60):
            raise AssertionError


def test_own_address_is_one() -> None:
    ipaddress.ip_address(meeting._own_address())


def test_host_has_one_name() -> None:
    assert meeting._host().tobytes() == meeting._host().tobytes()
    assert meeting._host().size == 16
