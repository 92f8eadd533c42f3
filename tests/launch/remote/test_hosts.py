"""Hosts: -H, hostfiles as several launchers write them, and DeepSpeed's filters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import UsageError
from aiodist.launch.remote.hosts import Host, chosen, from_file, from_option

HOSTFILE = """
# Open MPI, DeepSpeed and Horovod
a slots=4
b slots=2 max_slots=8   # two of them
user@c
d:3
[fe80::1%eth0]:2
a slots=1
"""


def test_hostfile_of_all_kinds() -> None:
    assert from_file(HOSTFILE, "hosts") == [
        Host("a", 5), Host("b", 2), Host("user@c"), Host("d", 3), Host("[fe80::1%eth0]", 2),
    ]  # fmt: skip


def test_option() -> None:
    assert from_option("a:4, b,user@10.0.0.7:1,") == [Host("a", 4), Host("b"), Host("user@10.0.0.7", 1)]
    assert from_option("a,a") == [Host("a", 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:x", "'x' is no number of workers"),
        ("a:0", "'0' is no number of workers"),
        ("a:99999", "'99999' is no number of workers"),
        ("a b", "'a b' is no host"),
        ("-oProxyCommand=evil", "is no host"),
        ("user@-oProxyCommand=evil", "is no host"),
        ("::1", r"is no host.*\[::1\]:4"),
        ("a;reboot", "is no host"),
        ("$(reboot):2", "is no host"),
    ],
)
def test_option_without_meaning(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("$", r"\$").replace("(", r"\(")):
        from_option(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=4\nb slots=many", "hosts, line 2: 'many' is no number of workers"),
        ("a 4", "hosts, line 1: '4' is no key=value"),
        ("# nobody\n", "hosts names no host"),
        ("a slot=2", "hosts, line 1: there is no slot. Did you mean slots"),
        ("a:2,b:2", "hosts, line 1: '2,b:2' is no number of workers.*one host on each line"),
        ("--evil slots=1", "hosts, line 1: '--evil' is no host"),
    ],
)
def test_hostfile_without_meaning(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        from_file(text, "hosts")


HOSTS = [Host("a", 4), Host("b", 2), Host("c")]


def test_what_editors_leave_in_a_hostfile() -> None:
    assert from_file("\ufeffa slots = 2\r\nb port=22 slots=3\r\n", "hosts") == [Host("a", 2), Host("b", 3)]


def test_filters() -> None:
    assert chosen(HOSTS) == HOSTS
    assert chosen(HOSTS, include="c@a:2,0") == [Host("a", 2, (0, 2)), Host("c")]
    assert chosen(HOSTS, exclude="c@a:1@b:0,1") == [Host("a", 3, (0, 2, 3))]
    assert chosen(HOSTS, include="a:0@b@a:2") == [Host("a", 2, (0, 2)), Host("b", 2)]
    assert chosen(HOSTS, exclude="a:0@b@a") == [Host("c")]


def test_filters_of_logins_and_addresses() -> None:
    hosts = [Host("user@a", 2), Host("user@b", 2), Host("[fe80::2]", 2), Host("b@c", 2)]
    assert chosen(hosts, exclude="b") == [hosts[0], *hosts[2:]]
    assert chosen(hosts, exclude="user@b") == [hosts[0], *hosts[2:]]
    assert chosen(hosts, include="[fe80::2]:1@user@a") == [hosts[0], Host("[fe80::2]", 1, (1,))]
    assert chosen(hosts, include="b@c") == [hosts[3]]
    assert chosen(hosts, include="user@a:1@b@c:0") == [Host("user@a", 1, (1,)), Host("b@c", 1, (0,))]


@pytest.mark.parametrize(
    ("include", "exclude", "said"),
    [
        ("a", "b", "exclude each other"),
        ("d", "", "names 'd', which is none of the hosts"),
        ("a:4", "", "worker '4' of a, which has 0 to 3"),
        ("c:0", "", "of c, which has none, since"),
        ("a:x", "", "worker 'x' of a"),
        ("", "a@b@c", "no host is left"),
    ],
)
def test_filters_without_meaning(include: str, exclude: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        chosen(HOSTS, include, exclude)


def test_names_for_people() -> None:
    names = ("user@node7.cluster", "10.0.0.7", "[fe80::1]", "b")
    assert [Host(name).shown for name in names] == ["node7", "10.0.0.7", "fe80::1", "b"]


def test_ssh_takes_an_address_without_brackets() -> None:
    names = ["a", "me@a.b", "[fd00::1]", "me@[fd00::1]"]
    assert [Host(name).login for name in names] == ["a", "me@a.b", "fd00::1", "me@fd00::1"]


@given(st.text(max_size=60))
def test_any_text_is_hosts_or_an_error_of_one_line(text: str) -> None:
    for read in (from_option, lambda given: from_file(given, "hosts")):
        try:
            hosts = read(text)
        except UsageError as caught:
            said = str(caught)
        else:
            said = "one"
            assert all(host.name and not host.name.startswith("-") for host in hosts)
        assert len(said.splitlines()) == 1
