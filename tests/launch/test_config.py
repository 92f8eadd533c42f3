"""What a config refuses, and what it tells the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aiodist.base.errors import UsageError
from aiodist.launch.config import LaunchConfig
from aiodist.launch.place import Place, worker_environment

PLACE = Place(
    node_rank=1,
    nnodes=2,
    first_rank=3,
    nproc=2,
    world_size=5,
    master_addr="10.0.0.1",
    master_port=29500,
    store="10.0.0.1:4711",
    job="j",
    secret="s",
    host="box",
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nproc": 0}, "--nproc-per-node must be at least 1, got 0"),
        ({"nnodes": 0}, "--nnodes must be at least 1"),
        ({"nnodes": 2, "node_rank": 2, "master_port": 1}, "--node-rank 2 is outside a job of 2"),
        ({"node_rank": -1}, "--node-rank -1 is outside"),
        ({"master_port": 70000}, "--master-port 70000 is not a port"),
        ({"nnodes": 2, "node_rank": 0}, "needs --master-port"),
        ({"nnodes": 3, "max_nodes": 2, "master_port": 1}, "--nnodes 3:2: the most is less than the least"),
        ({"max_nodes": 2}, "needs --master-port"),
        ({"max_nodes": 2, "node_rank": 2, "master_port": 1}, "--node-rank 2 is outside a job of 2"),
        ({"max_restarts": -1}, "--max-restarts must not be negative, got -1"),
        ({"last_call": -1.0}, "last_call_timeout must not be negative"),
        ({"shutdown_timeout": -1.0}, "--shutdown-timeout"),
        ({"meet_timeout": 0.0}, "must be positive"),
        ({"prefix": "${planet}"}, "unknown or broken placeholder"),
        ({"prefix": "$"}, "unknown or broken placeholder"),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("$", r"\$")):
        LaunchConfig(("true",), **values)


def test_prefix() -> None:
    config = LaunchConfig(("true",), prefix="[${role_name}${rank}/${local_rank}@${node_rank} ${host}]")
    assert config.prefix_of(rank=5, local_rank=1, node_rank=2, host="box") == "[default5/1@2 box]"


def test_streams() -> None:
    config = LaunchConfig(("true",), nproc=3, redirects={0: 3}, tee={1: 2}, shown=frozenset({0, 1}))
    assert config.wants_files
    assert [config.filed(0, 1), config.filed(0, 2), config.filed(1, 1), config.filed(1, 2)] == [
        True,
        True,
        False,
        True,
    ]
    assert [config.on_console(0, 1), config.on_console(1, 1), config.on_console(1, 2)] == [False, True, True]
    assert not config.on_console(2, 1)
    assert not LaunchConfig(("true",)).wants_files


def test_worker_environment() -> None:
    given = {"HOME": "/h", "TORCHELASTIC_ERROR_FILE": "x"}
    env = worker_environment(given, LaunchConfig(("true",), 2), PLACE, 1)
    assert env["HOME"] == "/h"
    assert "TORCHELASTIC_ERROR_FILE" not in env
    expected = {
        "RANK": "4",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "AIODIST_STORE": "10.0.0.1:4711",
        "AIODIST_SECRET": "s",
        "AIODIST_JOB": "j",
        "TORCHELASTIC_RUN_ID": "j",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    assert {name: env[name] for name in expected} == expected


def test_environment_of_a_worker_that_is_started_again() -> None:
    config = LaunchConfig(("true",), 2, max_restarts=3)
    env = worker_environment({"AIODIST_NEWCOMER": "1"}, config, PLACE, 1, 2)
    assert (env["RANK"], env["TORCHELASTIC_RESTART_COUNT"], env["AIODIST_RESTART_COUNT"]) == ("4", "2", "2")
    assert env["TORCHELASTIC_MAX_RESTARTS"] == "3"
    assert "AIODIST_NEWCOMER" not in env, "an outer launcher's word is not ours"
    assert worker_environment({}, config, replace(PLACE, newcomer=True), 1)["AIODIST_NEWCOMER"] == "1"


def test_where_nodes_may_come_later() -> None:
    assert not LaunchConfig(("true",), max_restarts=3).admits_later, "one node alone"
    several = LaunchConfig(("true",), nnodes=2, master_port=1)
    assert not several.admits_later and several.shown_nodes == "2"
    assert replace(several, max_restarts=1).admits_later
    assert replace(several, max_nodes=4).admits_later
    assert replace(several, max_nodes=4).shown_nodes == "2:4"


def test_what_the_user_tuned_stays() -> None:
    config = LaunchConfig(("true",), 2, local_addr="10.0.0.2")
    given = {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "0", "AIODIST_SOCKET_IFNAME": "eth0"}
    env = worker_environment(given, config, PLACE, 0)
    assert "AIODIST_SOCKET_IFNAME" not in env, "both are refused, and the address was found by it"
    assert (env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"], env["AIODIST_HOST"]) == ("4", "0", "10.0.0.2")
