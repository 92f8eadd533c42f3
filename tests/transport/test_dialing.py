"""What an address is."""

from __future__ import annotations

import pytest

from aiodist.transport.dialing import is_numeric


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "fe80::1"])
def test_addresses(host: str) -> None:
    assert is_numeric(host)


@pytest.mark.parametrize("host", ["localhost", "127.1", "::x", "fe80::1%lo", ""])
def test_names_and_what_only_the_resolver_knows(host: str) -> None:
    assert not is_numeric(host)
