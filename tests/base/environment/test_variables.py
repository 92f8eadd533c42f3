"""The table of AIODIST_* variables is that of the source, and near misses of names are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aiodist
from aiodist.base.environment.variables import KNOWN, near_misses, warn_of_near_misses

PACKAGE = Path(aiodist.__file__).parent
FAMILIES = {"AIODIST_ETCD", "AIODIST_TLS"}  # beginnings of names, which the source puts together
INNER = {"testing", "doctor"}


def test_it_has_every_name_in_the_source_and_no_other() -> None:
    named = set()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in INNER:
            named |= set(re.findall(r"\bAIODIST_[A-Z_]*[A-Z]\b(?!_)", path.read_text()))
    assert named - FAMILIES == KNOWN


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AIODIST_TIMEOUTT", "AIODIST_TIMEOUT"),
        ("AIODIST_TIMOUT", "AIODIST_TIMEOUT"),
        ("aiodist_timeout", "AIODIST_TIMEOUT"),
        ("MASTER_PROT", "MASTER_PORT"),
        ("MASTER_ADRR", "MASTER_ADDR"),
        ("MASTER_ADR", "MASTER_ADDR"),
        ("MASTER_ADDRS", "MASTER_ADDR"),
        ("MASTERPORT", "MASTER_PORT"),
        ("master_port", "MASTER_PORT"),
        ("WORLDSIZE", "WORLD_SIZE"),
        ("WROLD_SIZE", "WORLD_SIZE"),
    ],
)
def test_near_misses(name: str, meant: str) -> None:
    assert list(near_misses({"PATH": "/bin", name: "1"})) == [(name, meant)]
    assert list(near_misses({name: "1", meant: "1"})) == []


@pytest.mark.parametrize(
    "name",
    [
        "AIODIST_COLOUR_OF_MINE",
        "AIODIST_TIMEOUT",
        "MASTER",
        "PORT",
        "LOCAL_WORLD_SIZE",
        "MASTER_PASSWORD",
        "",
    ],
)
def test_other_names_are_no_near_misses(name: str) -> None:
    assert list(near_misses({name: "1"})) == []


def test_a_near_miss_is_told_once_and_by_one_process_of_a_node(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_near_misses({"MASTER_PRT": "1", "LOCAL_RANK": "1"})
    assert not caplog.records
    for _ in range(2):
        warn_of_near_misses({"MASTER_PRT": "1", "LOCAL_RANK": "0"})
    assert [record.getMessage() for record in caplog.records] == [
        "MASTER_PRT is set, and means nothing; did you mean MASTER_PORT?"
    ]
