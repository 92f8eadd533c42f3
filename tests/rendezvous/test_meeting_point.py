"""Where a job meets, by what the user and the launcher say."""

from __future__ import annotations

import pytest

from aiodist.base.errors import UsageError
from aiodist.rendezvous import HashStore, Invitation, Meeting
from aiodist.rendezvous.meeting_point import (
    MeetingPoint,
    Way,
    begins_job,
    meeting_point,
    says_where,
    standing_point,
)

HERE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
RANKED = {"RANK": "1", "WORLD_SIZE": "2", **HERE}
AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "r", **RANKED}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
STEP = {"SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
AT_MASTER = MeetingPoint(Way.address, "rank 0", ("10.0.0.1", 29500))
AT_LAUNCHER = MeetingPoint(Way.address, "nobody of the job", ("10.0.0.2", 3))


def asked(environ: dict[str, str], url: str = "env://", rank: int = -1, world_size: int = -1) -> Invitation:
    return Invitation.of(url, rank, world_size, 60.0, environ)


@pytest.mark.parametrize(
    ("environ", "point"),
    [
        ({}, MeetingPoint(Way.alone, "this process")),
        ({"AIODIST_ALONE": "1", "AIODIST_STORE": "10.0.0.1:3"}, MeetingPoint(Way.alone, "this process")),
        (RANKED, AT_MASTER),
        (
            {**RANKED, "AIODIST_STORE": "10.0.0.2:3"},
            MeetingPoint(Way.address, "nobody of the job", ("10.0.0.2", 3)),
        ),
        (
            {**RANKED, "AIODIST_STORE": "etcd://10.0.0.2"},
            MeetingPoint(Way.etcd, "nobody of the job", path="etcd://10.0.0.2"),
        ),
        ({**HERE, "RANK": "0", "WORLD_SIZE": "1"}, AT_MASTER),
        (AGENT, MeetingPoint(Way.agent, "rank 0", ("10.0.0.1", 29500))),
        (MPICH, MeetingPoint(Way.pmi, "rank 0")),
        ({**MPICH, **HERE}, AT_MASTER),
        (OPEN_MPI, MeetingPoint(Way.open_mpi, "rank 0")),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": OPEN_MPI["OMPI_COMM_WORLD_SIZE"]},
            MeetingPoint(Way.open_mpi, "whoever comes first"),
        ),
        ({**OPEN_MPI, **HERE}, AT_MASTER),
        (STEP, MeetingPoint(Way.slurm, "rank 0")),
        ({**STEP, "MASTER_ADDR": "10.0.0.1"}, MeetingPoint(Way.slurm, "rank 0")),
        ({**STEP, **HERE}, AT_MASTER),
    ],
)
def test_by_the_environment(environ: dict[str, str], point: MeetingPoint) -> None:
    assert meeting_point(asked(environ)) == point


@pytest.mark.parametrize(
    ("url", "point"),
    [
        ("tcp://10.0.0.3:4", MeetingPoint(Way.address, "rank 0", ("10.0.0.3", 4))),
        ("file:///a%20file", MeetingPoint(Way.file, "whoever comes first", path="/a file")),
        ("etcds://10.0.0.3", MeetingPoint(Way.etcd, "nobody of the job", path="etcds://10.0.0.3")),
        ("mine://there", MeetingPoint(Way.scheme, "nobody of the job", path="mine://there")),
    ],
)
def test_a_url_comes_before_the_environment(url: str, point: MeetingPoint) -> None:
    assert meeting_point(asked({**RANKED, "AIODIST_STORE": "10.0.0.2:3"}, url)) == point


@pytest.mark.parametrize(
    ("environ", "point"),
    [
        ({}, None),
        (HERE, AT_MASTER),
        (RANKED, AT_MASTER),
        ({**HERE, "MASTER_PORT": "none"}, None),
        (
            {**HERE, "AIODIST_STORE": "10.0.0.2:3"},
            MeetingPoint(Way.address, "nobody of the job", ("10.0.0.2", 3)),
        ),
        ({"AIODIST_STORE": "etcd://h"}, MeetingPoint(Way.etcd, "nobody of the job", path="etcd://h")),
        (AGENT, None),  # another store listens there
        (STEP, None),
    ],
)
def test_where_the_store_of_a_job_that_runs_stands(
    environ: dict[str, str], point: MeetingPoint | None
) -> None:
    """Also for a process that nothing gives a rank."""
    assert standing_point(asked(environ)) == point


def test_where_the_store_of_a_job_that_runs_stands_by_url() -> None:
    for url in ("tcp://10.0.0.1:29500", "etcd://h"):
        found = standing_point(asked({}, url))
        assert found is not None
        assert found == meeting_point(asked(RANKED, url))
    assert standing_point(asked(HERE, "file:///path")) is None


@pytest.mark.parametrize(
    ("environ", "url", "begins"),
    [
        (RANKED, "env://", True),
        ({**RANKED, "AIODIST_NEWCOMER": "1"}, "env://", False),
        (HERE, "env://", False),
        ({}, "tcp://h:1?rank=0&world_size=2", True),
        ({}, "tcp://h:1", False),
        (STEP, "env://", True),
    ],
)
def test_who_begins_a_job(environ: dict[str, str], url: str, begins: bool) -> None:
    assert begins_job(asked(environ, url)) == begins


def test_a_library_that_has_ranks_says_where_and_what_comes_before_it() -> None:
    async def meet(_: Invitation) -> Meeting:
        raise NotImplementedError

    invitation = Invitation("env://", -1, -1, 60.0, RANKED, by_library=meet)
    assert meeting_point(invitation) == MeetingPoint(Way.library, "rank 0")
    names = ("AIODIST_STORE", "MASTER_ADDR")
    assert not says_where(asked({"RANK": "1", "MASTER_ADDR": ""}), *names)
    assert not says_where(asked({"MASTER_ADDR": "10.0.0.1"}), "AIODIST_STORE")
    assert says_where(asked({"MASTER_ADDR": "10.0.0.1"}), *names)
    assert says_where(asked({"AIODIST_STORE": "10.0.0.1:3"}), *names)
    assert says_where(asked({}, "tcp://h:1"), *names)


def test_a_store_that_is_given_needs_a_place_and_nothing_else() -> None:
    def over(url: str, rank: int, world_size: int) -> Invitation:
        return Invitation(url, rank, world_size, 60.0, RANKED, store=HashStore())

    assert meeting_point(over("", 0, 2)) == MeetingPoint(Way.store, "nobody of the job")
    with pytest.raises(UsageError, match="init_method or store, not both"):
        meeting_point(over("env://", 0, 2))
    with pytest.raises(UsageError, match="needs rank and world_size, got rank=2, world_size=2"):
        meeting_point(over("", 2, 2))


def test_torchrun_that_shares_its_store_but_says_no_address() -> None:
    with pytest.raises(UsageError, match=r"^MASTER_PORT is not set"):
        meeting_point(asked({**AGENT, "MASTER_PORT": ""}))
