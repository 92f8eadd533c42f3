"""Environment variables → placement, and what is said about senseless ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.environment import Placement, placement
from aiodist.errors import UsageError

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
    with pytest.raises(UsageError, match=r"^rank=3 is not in a world"):
        placement({}, rank=3, world_size=3)


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
        (
            {"NODE_RANK": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "5"},
            "RANK is not set, and cannot be told: WORLD_SIZE=5 is no multiple of LOCAL_WORLD_SIZE=2",
        ),
    ],
)  # fmt: skip
def test_senseless_variables(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        placement(environ)
    assert caught.value.message.startswith(said)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
