"""The counters of an interface, from the kernel's page."""

from __future__ import annotations

import pytest

from benchmarks.harness.counters import crossed

PAGE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:      11      12    0    0    0     0          0         0       13      14    0    0    0     0       0          0
  eth0: 1234567     890    1    2    3     4          5         6 98765432     765    7    8    9    10      11         12
"""  # noqa: E501


def test_bytes_received_and_sent_are_read() -> None:
    assert crossed(page=PAGE) == (1234567, 98765432)
    assert crossed("lo", PAGE) == (11, 13)


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match="eth7"):
        crossed("eth7", PAGE)
