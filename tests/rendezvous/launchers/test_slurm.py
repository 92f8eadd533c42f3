"""Slurm's lists of hosts, the host of rank 0, and the port of a step."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import UsageError
from aiodist.rendezvous.launchers.slurm import MAX_HOSTS, first_host, host_of_rank_0, hosts, port
from tests.levels import COSTLY


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("x", ["x"]),
        ("n[1-3,07-09],x,gpu-[a1]", ["n1", "n2", "n3", "n07", "n08", "n09", "x", "gpu-a1"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[008-010].cluster", ["n008.cluster", "n009.cluster", "n010.cluster"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("a[1]b[2,4]c[3]d,e", ["a1b2c3d", "a1b4c3d", "e"]),
        ("[1-2]", ["1", "2"]),
        ("n[1,1]", ["n1", "n1"]),
        ("tux_a.b-c", ["tux_a.b-c"]),
    ],
)
def test_hosts(nodelist: str, names: list[str]) -> None:
    assert hosts(nodelist) == names
    assert first_host(nodelist) == names[0]


@pytest.mark.parametrize(
    ("nodelist", "why"),
    [
        ("", "no host is at character 1"),
        ("a,,b", "no host is at character 3"),
        ("a,", "no host is at character 3"),
        ("a b", "' ' at character 2"),
        ("n[1-2", r"'\[' at character 2"),
        ("n1]", r"'\]' at character 3"),
        ("n[1-[2]]", r"'\[' at character 2"),
        ("n[]", "'' in brackets"),
        ("n[1,]", "'' in brackets"),
        ("n[a-b]", "'a-b' in brackets"),
        ("n[1-]", "'1-' in brackets"),
        ("n[1-2-3]", "'1-2-3' in brackets"),
        ("n[2-1]", "the range 2-1 ends before it begins"),
        ("n[1-" + "9" * 5000 + "]", "in brackets is neither"),
        ("n[٣-٤]", "in brackets is neither"),
        ("höst", "'ö' at character 2"),
        ("n" * 256, "more than 255 characters"),
        ("n[1]" * 1000, "more than 255 characters"),
    ],
)
def test_what_is_no_list(nodelist: str, why: str) -> None:
    for read in (hosts, first_host):
        with pytest.raises(UsageError, match=why) as raised:
            read(nodelist)
        assert len(str(raised.value)) < 250


@pytest.mark.parametrize(
    "nodelist", ["n[0-65536]", "n[1-999999999999999999]", "n[1-99999999]x[1-99999999]", "a[1-256]b[1-256],c"]
)
def test_huge_lists_are_not_expanded(nodelist: str) -> None:
    with pytest.raises(UsageError, match=f"more than {MAX_HOSTS} hosts"):
        hosts(nodelist)
    assert first_host(nodelist) in ("n0", "n1", "n1x1", "a1b1")


def test_as_many_hosts_as_there_may_be() -> None:
    assert len(hosts("a[1-256]b[1-256]")) == MAX_HOSTS


def compressed(numbers: list[int], digits: int) -> str:
    """The inside of brackets, as Slurm writes it: adjacent numbers become a range."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ",".join(
        f"{first:0{digits}}" if first == last else f"{first:0{digits}}-{last:0{digits}}"
        for first, last in parts
    )


WORDS = st.from_regex(r"[a-zA-Z][a-zA-Z0-9.-]{0,8}[a-zA-Z]", fullmatch=True)
NUMBERS = st.lists(st.integers(0, 120), min_size=1, max_size=12)
BRACKETS = st.tuples(WORDS, NUMBERS, st.integers(1, 4))


@pytest.mark.slow(COSTLY)
@given(entries=st.lists(st.tuples(st.lists(BRACKETS, max_size=2), WORDS), min_size=1, max_size=4))
def test_a_compressed_list_expands_to_what_it_was(
    entries: list[tuple[list[tuple[str, list[int], int]], str]],
) -> None:
    short, names = [], []
    for brackets, tail in entries:
        short.append(
            "".join(f"{word}[{compressed(numbers, digits)}]" for word, numbers, digits in brackets) + tail
        )
        heads = [""]
        for word, numbers, digits in brackets:
            heads = [f"{head}{word}{number:0{digits}}" for head in heads for number in numbers]
        names += [head + tail for head in heads]
    assert hosts(",".join(short)) == names
    assert first_host(",".join(short)) == names[0]


@given(text=st.text(alphabet="an019-,[]. _", max_size=20))
def test_whatever_stands_there_is_a_list_or_refused(text: str) -> None:
    try:
        first = first_host(text)
    except UsageError:
        with pytest.raises(UsageError):
            hosts(text)
        return
    with contextlib.suppress(UsageError):  # too many
        assert hosts(text)[0] == first


def test_port_is_the_steps() -> None:
    ports = {port(str(job), str(step)) for job in range(50) for step in range(20)}
    assert all(20000 <= found <= 31999 for found in ports)
    assert len(ports) > 900  # of 1000
    # All tasks get the same, whatever their Python.
    assert (port("4711", "0"), port("4711", "1"), port("47110", "")) == (27927, 23192, 30916)


HET = {
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "m[7-9]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "a1",
}


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({"SLURM_STEP_NODELIST": "n[3,5]", "SLURM_DISTRIBUTION": "cyclic"}, "n3"),
        ({"SLURM_STEP_NODELIST": "a1,m[8-9]", **HET}, "m8"),  # the list is sorted, the components are not
        ({"SLURM_STEP_NODELIST": "a1", **HET}, "a1"),
        ({"SLURM_STEP_NODELIST": "z", **HET}, "z"),  # a list of something else
        ({"SLURM_STEP_NODELIST": "a1,m[8-9]", **HET, "SLURM_HET_SIZE": ""}, "a1"),
    ],
)
def test_host_of_rank_0(environ: dict[str, str], host: str) -> None:
    assert host_of_rank_0(environ) == host


def test_an_order_of_the_users_own() -> None:
    with pytest.raises(UsageError, match=r"one of n\[3-5\], is not known") as raised:
        host_of_rank_0({"SLURM_STEP_NODELIST": "n[3-5]", "SLURM_DISTRIBUTION": "arbitrary"})
    assert "Set MASTER_ADDR" in str(raised.value)
