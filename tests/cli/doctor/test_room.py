"""Cores, what others take of them, and open files."""

from __future__ import annotations

import os
from functools import partial
from resource import RLIM_INFINITY

from aiodist.base.environment.processor_load import Disturbance
from aiodist.cli.doctor import room
from aiodist.cli.doctor.room import check_cores, check_disturbance, check_open_files
from aiodist.cli.doctor.topic import Finding
from tests.cli.doctor.asks import MACHINE, by_name


def test_the_room_of_this_machine() -> None:
    found = by_name(room.findings({}, MACHINE))
    assert set(found) == {"cores", "idle", "open files"}
    assert f"affinity {len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs" in found["cores"].value


def test_cores_are_those_of_the_affinity_and_the_quota() -> None:
    free = partial(check_cores, 16, 6, None)
    assert free(6).state == "ok"
    assert free(7).state == "limited"
    assert free(7).fix == "aiodist run --nproc-per-node 6 …"
    quota = partial(check_cores, 16, 6, 2.5)
    assert quota(2).state == "ok"
    assert quota(3).fix == "aiodist run --nproc-per-node 2 …"
    assert quota(3).value == "2.5 for 3 ranks (affinity 6 of 16 CPUs, quota 2.5)"
    assert check_cores(16, 6, 0.5, 1).fix == "aiodist run --nproc-per-node 1 …"


def test_others_that_take_the_cores() -> None:
    assert check_disturbance(Disturbance(2, 0.04, 0.0, 0.31)) == Finding(
        "idle", "ok", "other processes take 4 % of the cores (load 0.3)"
    )
    assert check_disturbance(None).state == "ok"  # not Linux
    busy = check_disturbance(Disturbance(2, 0.42, 0.0, 3.14, "make"))
    assert busy.state == "limited" and busy.cost and busy.fix
    assert busy.value == "other processes took 42 % of the processors' time, most of it make (load 3.1)"
    elsewhere = check_disturbance(Disturbance(2, 0.0, 0.2, 3.14))
    assert elsewhere.state == "limited" and "hypervisor" in elsewhere.value
    assert not elsewhere.fix  # nothing here can be ended


def test_open_files() -> None:
    assert check_open_files(1024, 4096, 87).state == "ok"
    short = check_open_files(1024, 4096, 88)
    assert (short.state, short.fix) == ("limited", "ulimit -n 1032")
    assert check_open_files(1024, 4096, 1000).fix.startswith("ulimit -Hn 11064, as root")
    assert check_open_files(1024, RLIM_INFINITY, 1000).fix == "ulimit -n 11064"
    endless = check_open_files(RLIM_INFINITY, RLIM_INFINITY, 100_000)
    assert endless.state == "ok" and endless.value.startswith("no limit; ")
