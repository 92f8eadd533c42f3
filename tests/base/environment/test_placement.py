"""Environment variables → placement, and what is said about senseless ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.environment import Placement, placement
from aiodist.base.errors import UsageError

MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_generic() -> None:
    environ = {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        **MASTER,
    }
    found = placement(environ)
    assert found == Placement(
        3, 8, 1, 2, 0, None, "10.0.0.1", 29500, "generic",
        "LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=0 RANK=3 WORLD_SIZE=8",
    )  # fmt: skip


def test_the_least_that_is_enough() -> None:
    found = placement({"RANK": "1", "WORLD_SIZE": "2"})
    assert (found.rank, found.world_size, found.local_rank, found.node_rank) == (1, 2, None, None)


def test_alone() -> None:
    found = placement({"PATH": "/bin", "RANK": "", "MASTER_PORT": "29500"})
    assert (found.rank, found.world_size, found.launcher) == (0, 1, "alone")


def test_torchrun_and_aiodist() -> None:
    environ = {
        "RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "none", **MASTER,
    }  # fmt: skip
    found = placement(environ)
    assert (found.launcher, found.node_rank, found.node_count) == ("torchrun", 2, 3)
    assert placement({**environ, "AIODIST_STORE": "h:1"}).launcher == "aiodist"
    # torchrun runs inside srun: its word counts.
    assert placement({**environ, "SLURM_PROCID": "0"}).rank == 5


OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_NODE_RANK": "1",
}  # fmt: skip
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_NTASKS": "9", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "8", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_GTIDS": "3,5,7",
}  # fmt: skip


HOROVOD = {
    "HOROVOD_RANK": "5", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4",
    "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.9",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "name", "local_size", "node", "nodes"),
    [
        (HOROVOD, "Horovod", 4, 1, 2),
        (OPEN_MPI, "Open MPI", 4, None, None),
        (HYDRA, "MPICH", 4, None, None),
        (SRUN, "Slurm", 3, 1, 2),
    ],
)
def test_other_launchers(
    environ: dict[str, str], name: str, local_size: int | None, node: int | None, nodes: int | None
) -> None:
    found = placement(environ)
    assert (found.rank, found.world_size, found.local_rank, found.launcher) == (5, 8, 1, name)
    assert (found.local_world_size, found.node_rank, found.node_count) == (local_size, node, nodes)
    # RANK and WORLD_SIZE, which a user makes of them, count.
    assert placement({**environ, "RANK": "2", "WORLD_SIZE": "3"}).launcher == "generic"
    # MASTER_ADDR alone says where, and not who.
    assert placement({**environ, **MASTER}) == replace(found, master_addr="10.0.0.1", master_port=29500)


JAX = {"JAX_PROCESS_ID": "5", "JAX_NUM_PROCESSES": "8", "JAX_COORDINATOR_ADDRESS": "10.0.0.9:1234"}
POD = {
    "PET_NNODES": "8", "PET_NODE_RANK": "5", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "trainer-0",
    "PET_MASTER_PORT": "29500",
}  # fmt: skip


def test_those_that_say_nothing_of_a_node() -> None:
    found = placement(JAX)
    assert (found.rank, found.world_size, found.launcher, found.local_rank) == (5, 8, "JAX", None)
    found = placement({"JOB_COMPLETION_INDEX": "5", "WORLD_SIZE": "8", **MASTER})
    assert (found.rank, found.world_size, found.launcher) == (5, 8, "indexed Job")
    assert found.master_addr == "10.0.0.1"
    # Which one it is, and not of how many: that may be an independent one.
    assert placement({"JOB_COMPLETION_INDEX": "5"}).launcher == "alone"
    assert placement({"JOB_COMPLETION_INDEX": "5", "RANK": "1", "WORLD_SIZE": "8"}).rank == 1


def test_a_pod_of_one_process_is_a_rank_and_a_pod_of_several_is_for_a_launcher() -> None:
    found = placement(POD)
    assert (found.rank, found.world_size, found.node_rank, found.node_count) == (5, 8, 5, 8)
    assert (found.launcher, found.master_addr, found.master_port) == ("Kubeflow", "trainer-0", 29500)
    assert placement({**POD, **MASTER}).master_addr == "10.0.0.1"
    assert placement({**POD, "PET_NPROC_PER_NODE": "2"}).launcher == "alone"
    with pytest.raises(UsageError, match="PET_MASTER_PORT='http' is not a port"):
        placement({**POD, "PET_MASTER_PORT": "http"})


def test_mpirun_inside_slurm_and_srun_with_pmi() -> None:
    assert placement({**SRUN, **OPEN_MPI, "SLURM_PROCID": "0"}).launcher == "Open MPI"
    assert placement({**SRUN, **HYDRA, "SLURM_PROCID": "0"}).launcher == "MPICH"
    assert placement({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "8"}).launcher == "Slurm"


def test_a_list_of_ranks_that_is_none() -> None:
    assert placement({**SRUN, "SLURM_GTIDS": ""}).local_world_size is None
    with pytest.raises(UsageError, match="SLURM_GTIDS='3-7' is not a list of numbers"):
        placement({**SRUN, "SLURM_GTIDS": "3-7"})


def test_the_shell_of_a_batch_script_is_no_rank() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
    assert placement(environ).launcher == "alone"


ALONE = (0, 1, 0, 1, 0, 1, None)


def alone(found: Placement) -> bool:
    """Whether it is a job of one, with nothing of others in it."""
    return (
        *(found.rank, found.world_size, found.local_rank, found.local_world_size),
        *(found.node_rank, found.node_count, found.master_addr),
    ) == ALONE


@pytest.mark.parametrize("environ", [{}, OPEN_MPI, HYDRA, SRUN, MASTER, {"LOCAL_RANK": "1"}])
def test_who_shall_be_alone_is(environ: dict[str, str]) -> None:
    found = placement({**environ, "AIODIST_ALONE": "1"})
    assert alone(found) and (found.launcher, found.evidence) == ("alone", "AIODIST_ALONE=1")
    found = placement(environ, world_size=1)
    assert alone(found) and (found.launcher, found.evidence) == ("alone", "world_size=1")
    found = placement(environ, rank=0, world_size=1)
    assert alone(replace(found, master_addr=None)) and found.launcher == "arguments"
    assert found.master_addr == environ.get("MASTER_ADDR")


@pytest.mark.parametrize("more", [{}, {"TORCHELASTIC_RUN_ID": "j"}, {"AIODIST_STORE": "h:1"}])
def test_who_was_told_its_rank_is_not_alone_by_a_variable(more: dict[str, str]) -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", **more}
    assert placement({**environ, "AIODIST_ALONE": "1"}) == placement(environ)
    assert alone(placement({**environ, "AIODIST_ALONE": "1"}, world_size=1))
    assert placement({**OPEN_MPI, "AIODIST_ALONE": "0"}).world_size == 8
    with pytest.raises(UsageError, match="AIODIST_ALONE='perhaps' is neither yes nor no"):
        placement({"AIODIST_ALONE": "perhaps"})


def test_aiodist_variables_come_before_all_others() -> None:
    found = placement({"AIODIST_RANK": "2", "AIODIST_WORLD_SIZE": "4", "RANK": "0", "WORLD_SIZE": "1"})
    assert (found.rank, found.world_size, found.launcher) == (2, 4, "environment")


def test_arguments_come_first() -> None:
    found = placement({"RANK": "0", "WORLD_SIZE": "8", **MASTER}, rank=2, world_size=3)
    assert (found.rank, found.world_size, found.launcher) == (2, 3, "arguments")
    assert placement({}, rank=2, world_size=3).evidence == "rank=2 world_size=3"
    assert placement({"WORLD_SIZE": "8"}, rank=2).rank == 2
    with pytest.raises(UsageError, match=r"^WORLD_SIZE is not set"):
        placement({}, rank=2)
    with pytest.raises(UsageError, match=r"^RANK is not set, but the argument world_size=2"):
        placement({}, world_size=2)
    with pytest.raises(UsageError, match=r"^rank=3 is not in a world"):
        placement({}, rank=3, world_size=3)


@pytest.mark.parametrize("environ", [OPEN_MPI, HYDRA, SRUN, HOROVOD])
def test_a_launchers_local_ranks_hold_for_arguments_that_mean_the_same_world(environ: dict[str, str]) -> None:
    said = placement(environ)
    found = placement(environ, rank=5, world_size=8)
    assert found == replace(said, launcher="arguments", evidence="rank=5 world_size=8")
    # Two of eight processes form a job of their own: a worker pool, say.
    found = placement(environ, rank=1, world_size=2)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (1, 2, None, None)
    assert (found.node_rank, found.node_count) == (None, None)


def test_arguments_need_no_sense_in_what_they_replace() -> None:
    found = placement({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "x"}, rank=1, world_size=2)
    assert (found.rank, found.local_rank) == (1, None)
    assert placement({"RANK": "abc"}, rank=1, world_size=2).rank == 1
    # What says a local rank and nothing else may well mean this world.
    found = placement({"LOCAL_RANK": "1", "NODE_RANK": "0"}, rank=3, world_size=4)
    assert (found.rank, found.local_rank, found.node_rank) == (3, 1, 0)


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_rank_follows_from_the_node(nodes: int, local_size: int, data: st.DataObject) -> None:
    node, local = data.draw(st.integers(0, nodes - 1)), data.draw(st.integers(0, local_size - 1))
    environ = {"NODE_RANK": str(node), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(local_size)}
    found = placement({**environ, "WORLD_SIZE": str(nodes * local_size)})
    assert found.rank == node * local_size + local
    assert placement({**environ, "NNODES": str(nodes)}).world_size == nodes * local_size


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"WORLD_SIZE": "4"}, "RANK is not set, but WORLD_SIZE=4"),
        ({"WORLD_SIZE": "4", "RANK": ""}, "RANK is not set, but WORLD_SIZE=4"),
        ({"RANK": "4"}, "WORLD_SIZE is not set, but RANK=4"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK and WORLD_SIZE are not set, but MASTER_ADDR is"),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK is not set, but LOCAL_RANK=0, WORLD_SIZE=2"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK='x' is not a number"),
        ({"RANK": "1.5", "WORLD_SIZE": "4"}, "RANK='1.5' is not a number"),
        ({"RANK": "0", "WORLD_SIZE": "many"}, "WORLD_SIZE='many' is not a number"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK=-1 must be at least 0"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0 must be at least 1"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 is not in a world of WORLD_SIZE=4"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=2 is"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE=5 is more than"),
        ({"RANK": "0", "WORLD_SIZE": "4", "NODE_RANK": "2", "NNODES": "2"}, "NODE_RANK=2 is not below"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "http"}, "MASTER_PORT='http' is not a port"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "70000"}, "MASTER_PORT='70000' is not a port"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "8"},
         "OMPI_COMM_WORLD_RANK=8 is not in a world of OMPI_COMM_WORLD_SIZE=8"),
        ({**HYDRA, "MPI_LOCALRANKID": "4"}, "MPI_LOCALRANKID=4 is not below MPI_LOCALNRANKS=4"),
        ({**SRUN, "SLURM_LOCALID": "3"}, "SLURM_LOCALID=3 is not below the 3 of SLURM_GTIDS"),
        (
            {"NODE_RANK": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "5"},
            "RANK is not set, and the other variables do not give it: WORLD_SIZE=5 is not a multiple of "
            "LOCAL_WORLD_SIZE=2",
        ),
    ],
)  # fmt: skip
def test_senseless_variables(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        placement(environ)
    assert caught.value.message.startswith(said)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
