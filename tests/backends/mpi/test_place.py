"""Who a process is, and what it tells the others where it may not be that."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.backends.base import Array
from aiodist.backends.mpi.place import HOST_BYTES, card, cards, check_place, refused, together
from aiodist.base.errors import UsageError


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


def shown(*refusals: str, hosts: str = "") -> Array:
    """Everybody's cards, of hosts that have a letter each."""
    table = cards(len(refusals))
    for rank, text in enumerate(refusals):
        host = hosts[rank].encode() * HOST_BYTES if hosts else bytes(HOST_BYTES)
        table[rank] = card(host, UsageError(text, hint="Do better") if text else None)
    return table


def test_nobody_is_refused() -> None:
    assert refused(shown("", "", "")) is None
    assert np.array_equal(shown("", ""), cards(2))


def test_all_know_who_is_refused_and_why() -> None:
    why = str(refused(shown("", "RANK=0, but this is rank 1", "")))
    assert why == "rank 1 cannot go on: RANK=0, but this is rank 1. What to do is in that rank's output"
    assert str(refused(shown("one", "", "another"))).startswith("ranks 0 and 2 cannot go on: one. ")


def test_what_is_long_is_cut_between_letters() -> None:
    words = "→" * 300
    error = refused(shown("", words))
    assert error is not None
    said = error.message.removeprefix("rank 1 cannot go on: ")
    assert said
    assert words.startswith(said)


def test_a_secret_is_given_to_all_or_to_none() -> None:
    host = bytes(HOST_BYTES)
    for given, ranks in (((1, 0, 1, 0), "ranks 1 and 3"), ((0, 1, 0, 0), "ranks 0, 2 and 3")):
        told = np.stack([card(host, None, bool(one)) for one in given])
        error = str(refused(told))
        assert error.startswith(f"{ranks} cannot go on: no secret was given there, as it was to ")
        assert "mpirun -x AIODIST_SECRET_FILE" in error
    for same in (False, True):
        told = np.stack([card(host, None, same)] * 3)
        assert refused(told) is None


def test_who_is_on_one_host() -> None:
    assert together(shown("", "", "", hosts="aaa"))
    assert together(shown("", "x", "", hosts="aaa"))
    assert not together(shown("", "", "", hosts="aab"))
