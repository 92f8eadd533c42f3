"""Which job is meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import UsageError
from aiodist.observe import JobView
from aiodist.observe.choice import SHORTEST, pick, short_keys
from tests.observe.made import a_rank

KEYS = ["abcdef01", "abcdee02", "0123abcd"]


def a_job(key: str, script: str = "train.py", alive: bool = True) -> JobView:
    return JobView(key, (a_rank(about={"argv": [f"/home/me/{script}"]}, alive=alive),))


JOBS = [a_job(KEYS[0], alive=False), a_job(KEYS[1], "late.py"), a_job(KEYS[2])]


@pytest.mark.parametrize(
    ("wanted", "key"),
    [
        ("abcdef", KEYS[0]),
        ("0", KEYS[2]),
        ("train.py", KEYS[2]),
        ("late", KEYS[1]),
    ],
)
def test_the_job_that_is_meant(wanted: str | None, key: str) -> None:
    assert pick(JOBS, wanted).key == key


def test_the_only_one_that_lives_need_not_be_named() -> None:
    assert pick(JOBS[:2]).key == KEYS[1]
    with pytest.raises(UsageError) as info:
        pick(JOBS)
    said = "2 jobs run here: abcdee (late.py), 0123 (train.py). Add which one is meant: abcdee, for example"
    assert str(info.value) == said


def test_of_the_dead_the_newest() -> None:
    assert pick(JOBS[:1]).key == KEYS[0]


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("abc", "'abc' may be one of several jobs: abcdef (train.py), abcdee (late.py). Write more of it"),
        ("x", "there is no job 'x'. There are: abcdef (train.py), abcdee (late.py), 0123 (train.py)"),
        ("", "there is no job ''. There are: abcdef (train.py), abcdee (late.py), 0123 (train.py)"),
    ],
)
def test_none_or_several_are_meant(wanted: str, text: str) -> None:
    with pytest.raises(UsageError) as info:
        pick(JOBS, wanted)
    assert str(info.value) == text


def test_there_are_none_or_many() -> None:
    with pytest.raises(UsageError, match=r"there is no job\. No job of this user runs on this host"):
        pick([])
    many = [a_job(f"{number:08x}") for number in range(7)]
    with pytest.raises(UsageError, match=r"and 2 more$"):
        pick(many, "x")


@given(st.sets(st.text("0123456789abcdef", min_size=12, max_size=12), max_size=20))
def test_short_keys_name_one_job_each(keys: set[str]) -> None:
    jobs = [a_job(key) for key in keys]
    for key, short in short_keys(jobs).items():
        assert len(short) >= SHORTEST
        assert pick(jobs, short).key == key
