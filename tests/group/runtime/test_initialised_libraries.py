"""A library that was initialised before says rank, size and the way, unless something else does."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from aiodist.group.runtime.initialised_libraries import beside_others
from aiodist.rendezvous import Invitation
from aiodist.rendezvous.launchers import jax_group, torch_group

PLACE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def asked(
    environ: dict[str, str] | None = None, rank: int = -1, size: int = -1, url: str = "env://"
) -> Invitation:
    return Invitation(url, rank, size, 60.0, environ or {})


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch.distributed as it looks once it is initialised, as rank 2 of 4."""
    module = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 2, get_world_size=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    return module


def found(invitation: Invitation) -> tuple[int, int, Any]:
    answer = beside_others(invitation)
    return answer.rank, answer.world_size, answer.by_library


def test_torch_says_what_no_variable_says(torch: Any) -> None:
    said: list[dict[str, str]] = [
        {},
        PLACE,
        {"LOCAL_RANK": "0", **PLACE},
        {"RANK": "0", "WORLD_SIZE": "2", **PLACE},
    ]
    for environ in said:
        assert found(asked(environ)) == (2, 4, torch_group.meet)


@pytest.mark.parametrize(("rank", "size"), [(2, 4), (2, -1), (-1, 4)])
def test_arguments_that_agree(torch: Any, rank: int, size: int) -> None:
    assert found(asked({}, rank, size)) == (2, 4, torch_group.meet)


@pytest.mark.parametrize(
    "invitation",
    [
        asked({}, 1, 4),
        asked({}, 2, 3),
        asked({}, -1, 2),
        asked({}, 2, 4, "tcp://10.0.0.1:3"),
        asked({"AIODIST_STORE": "10.0.0.1:3"}),
        asked(size=1),
        asked({"AIODIST_ALONE": "1"}),
    ],
)
def test_another_job_is_meant(torch: Any, invitation: Invitation) -> None:
    assert beside_others(invitation) is invitation


def test_a_group_of_one_is_no_evidence_of_a_job_of_one(torch: Any) -> None:
    torch.get_rank, torch.get_world_size = (lambda: 0), (lambda: 1)
    ranked = asked({"RANK": "1", "WORLD_SIZE": "2", **PLACE})
    assert beside_others(ranked) is ranked
    assert found(asked({"RANK": "0", "WORLD_SIZE": "1", **PLACE})) == (0, 1, torch_group.meet)
    assert found(asked(PLACE)) == (0, 1, torch_group.meet)


@pytest.mark.parametrize("how", ["absent", "without distributed", "not initialised", "not a member"])
def test_torch_that_says_nothing(torch: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "absent":
        monkeypatch.delitem(sys.modules, "torch.distributed")
    elif how == "without distributed":
        torch.is_available = lambda: False
    elif how == "not initialised":
        torch.is_initialized = lambda: False
    else:
        torch.get_rank = lambda: -1
    assert found(asked()) == (-1, -1, None)


def test_jax_comes_after_torch(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = types.SimpleNamespace(client=object(), process_id=1, num_processes=3, coordinator_address="h:1")
    monkeypatch.setitem(sys.modules, "jax._src.distributed", types.SimpleNamespace(global_state=state))
    assert found(asked()) == (2, 4, torch_group.meet)
    torch.is_initialized = lambda: False
    assert found(asked()) == (1, 3, jax_group.meet)


@pytest.mark.parametrize(
    ("environ", "initialised", "by_mpi"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, False, False),
        ({"OMPI_COMM_WORLD_SIZE": "2", **PLACE}, True, False),
        ({"PMI_SIZE": "2"}, True, False),
        ({}, True, False),
    ],
)
def test_mpi_that_is_initialised_leads_open_mpi_s_ranks_to_each_other(
    environ: dict[str, str], initialised: bool, by_mpi: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.SimpleNamespace(Is_initialized=lambda: initialised)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    answer = beside_others(asked(environ))
    assert (answer.by_library is not None) == by_mpi
