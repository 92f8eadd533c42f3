"""Addresses as people write them."""

from __future__ import annotations

import pytest

from aiodist.base.environment import is_link_local, own_host, placement, plain_host, split_address
from aiodist.base.errors import UsageError

LINK_LOCAL = "is a link-local address, which means nothing on other hosts. Give another address of that host"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("[fd00::7]", "fd00::7"),
        ("10.0.0.1", "10.0.0.1"),
        ("169.254.1.1", "169.254.1.1"),
        ("node-1.cluster", "node-1.cluster"),
        ("fe80", "fe80"),
    ],
)
def test_brackets_are_left_out(text: str, host: str) -> None:
    assert plain_host(text) == host
    assert not is_link_local(host)


@pytest.mark.parametrize("text", ["fe80::1", "fe80::1%eth0", "[fe80::1%eth0]", "febf::2"])
def test_an_address_of_one_link_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--master-addr=") as caught:
        plain_host(text, "--master-addr")
    assert f"{text} {LINK_LOCAL}" in str(caught.value)


def test_variables() -> None:
    assert own_host({}) is own_host({"AIODIST_HOST": ""}) is None
    assert own_host({"AIODIST_HOST": "[fd00::1]"}) == "fd00::1"
    with pytest.raises(UsageError, match="AIODIST_HOST=fe80::1%eth0 is a link-local"):
        own_host({"AIODIST_HOST": "fe80::1%eth0"})
    job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}
    assert placement({**job, "MASTER_ADDR": "[::1]"}).master_addr == "::1"
    with pytest.raises(UsageError, match="MASTER_ADDR=fe80::1 is a link-local"):
        placement({**job, "MASTER_ADDR": "fe80::1"})


def test_with_a_port() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    with pytest.raises(UsageError, match=r"AIODIST_STORE=fe80::1%eth0 is a link-local"):
        split_address("fe80::1%eth0:80", "AIODIST_STORE")
    with pytest.raises(UsageError, match=r"'::1:80' is not host:port. For IPv6 write \[address\]:port"):
        split_address("::1:80")
