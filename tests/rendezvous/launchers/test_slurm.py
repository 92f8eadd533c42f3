"""Slurm's lists of hosts, counts of tasks, and the port of a step."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.errors import UsageError
from aiodist.rendezvous.launchers.slurm import MAX_HOSTS, first_host, hosts, port, tasks_on_node


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
    """The inside of brackets, as Slurm writes it: neighbours become a range."""
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


@pytest.mark.parametrize(
    ("text", "counts"),
    [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x1),3", [1, 2, 3]), ("16(x2)", [16, 16])],
)
def test_tasks_on_a_node(text: str, counts: list[int]) -> None:
    assert [tasks_on_node(text, node) for node in range(len(counts))] == counts
    for node in (-1, len(counts)):
        with pytest.raises(UsageError, match=f"has {len(counts)} nodes, and none is number {node}"):
            tasks_on_node(text, node)


def test_tasks_on_many_nodes() -> None:
    assert tasks_on_node("7(x999999999),3", 999_999_999) == 3


@pytest.mark.parametrize(
    "text", ["", "2,", "2(3)", "2(x)", "(x2)", "-1", "2(x3", "two", "2 (x3)", "9" * 5000]
)
def test_senseless_counts_of_tasks(text: str) -> None:
    with pytest.raises(UsageError, match="is not understood") as raised:
        tasks_on_node(text, 0)
    assert len(str(raised.value)) < 250


@given(
    counts=st.lists(st.tuples(st.integers(0, 99), st.integers(1, 5)), min_size=1, max_size=6), data=st.data()
)
def test_repeated_counts_are_what_they_stand_for(counts: list[tuple[int, int]], data: st.DataObject) -> None:
    whole = [tasks for tasks, nodes in counts for _ in range(nodes)]
    text = ",".join(f"{tasks}(x{nodes})" if nodes > 1 else str(tasks) for tasks, nodes in counts)
    node = data.draw(st.integers(0, len(whole) - 1))
    assert tasks_on_node(text, node) == whole[node]
