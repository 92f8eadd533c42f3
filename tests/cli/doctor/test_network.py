"""Loopback, and the address that peers are told."""

from __future__ import annotations

import pytest

from aiodist.cli.doctor.network import (
    Configured,
    check_address,
    check_loopback,
    configured,
    examine,
    loopback,
)
from aiodist.cli.doctor.topic import ProcessAnswer
from tests.cli.doctor.asks import ask, by_name


def test_loopback() -> None:
    assert loopback() == ""
    assert check_loopback("").state == "ok"
    assert check_loopback("Connection refused").fix == "ip link set lo up"


def test_addresses_that_the_environment_names() -> None:
    assert configured({}) == Configured()
    assert configured({"MASTER_ADDR": "a", "AIODIST_HOST": "b"}) == Configured("b", "AIODIST_HOST", "", "a")
    assert configured({"MASTER_ADDR": "a", "AIODIST_STORE": "c:1"}).there == "c"
    assert configured({"AIODIST_STORE": "etcd://joe:x@c:2379,d:2379/jobs"}).there == "c"
    assert configured({"AIODIST_STORE": "[fd80::1]:7"}).there == "fd80::1"
    assert configured({"AIODIST_SOCKET_IFNAME": "lo"}) == Configured("127.0.0.1", "AIODIST_SOCKET_IFNAME")
    assert "no network interface 'eth77'" in configured({"AIODIST_SOCKET_IFNAME": "eth77"}).trouble


def test_the_address_towards_another_host() -> None:
    assert ask(examine, "127.0.0.1", "127.0.0.1").facts == {
        "unusable": "",
        "own": "127.0.0.1",
        "unreachable": "",
    }
    found = ask(examine, "192.0.2.77", "no.such.host.invalid").facts
    assert found["unusable"] and found["unreachable"] and not found["own"]


def address(unusable: str = "", own: str = "", unreachable: str = "") -> ProcessAnswer:
    return ProcessAnswer({"unusable": unusable, "own": own, "unreachable": unreachable})


@pytest.mark.parametrize(
    ("configured", "outward", "answer", "state", "word"),
    [
        (Configured(), "10.0.0.5", address(), "ok", "10.0.0.5"),
        (Configured(), "", address(), "limited", "no route"),
        (Configured("10.0.0.5", "AIODIST_HOST"), "10.0.0.5", address(), "ok", "AIODIST_HOST"),
        (Configured("10.0.0.9", "AIODIST_HOST"), "", address("Cannot assign"), "missing", "Cannot assign"),
        (
            Configured("h", "AIODIST_HOST"),
            "",
            ProcessAnswer(trouble="no answer within 9 s"),
            "missing",
            "no answer",
        ),
        (Configured("", "AIODIST_SOCKET_IFNAME", "there is no eth7"), "", address(), "missing", "eth7"),
        (Configured(there="a"), "10.0.0.5", address(own="10.1.0.5"), "ok", "10.1.0.5, which leads to a"),
        (Configured(there="a"), "10.0.0.5", address(own="127.0.1.1"), "limited", "a is a name of loopback"),
        (Configured(there="127.0.0.1"), "10.0.0.5", address(own="127.0.0.1"), "ok", "127.0.0.1"),
    ],
)
def test_the_address_that_peers_are_told(
    configured: Configured, outward: str, answer: ProcessAnswer, state: str, word: str
) -> None:
    (found,) = check_address(configured, outward, answer)
    assert (found.name, found.state) == ("address", state)
    assert word in found.value
    assert (state == "ok") == (not found.cost) == (not found.fix)


def test_a_meeting_place_that_nobody_knows() -> None:
    found = by_name(
        check_address(Configured(there="nowhere"), "10.0.0.5", address(unreachable="Name not known"))
    )
    assert found["meeting place"].value == "nowhere: Name not known"
    silent = ProcessAnswer(trouble="no answer within 20 s")
    found = by_name(check_address(Configured(there="nowhere"), "10.0.0.5", silent))
    assert found["address"].state == "ok" and found["meeting place"].state == "missing"
