"""Refusals in the log: one printable line each, and not too many."""

from __future__ import annotations

import logging
import socket

import pytest

from aiodist.net.refusals import LINES, PERIOD, Refusals, address_of

LOG = logging.getLogger("aiodist.test")


def test_a_few_lines_and_then_a_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = Refusals(LOG, lambda: now)
    for number in range(LINES + 7):
        refusals.say("10.0.0.1:5", f"reason {number}")
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"refused 10.0.0.1:5: reason {number}" for number in range(LINES)]
    caplog.clear()
    now = PERIOD
    refusals.say("10.0.0.1:5", "again")
    refusals.log_omitted()
    assert [r.getMessage() for r in caplog.records] == ["refused 7 more", "refused 10.0.0.1:5: again"]


def test_the_rest_is_said_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(LOG, lambda: 0.0)
    for _ in range(LINES + 1):
        refusals.say("somebody", "reason")
    refusals.log_omitted()
    refusals.log_omitted()
    assert caplog.records[-1].getMessage() == "refused 1 more"


def test_text_of_a_refused_peer_gives_no_orders(caplog: pytest.LogCaptureFixture) -> None:
    Refusals(LOG).say("somebody", "\x1b[2Jjob 'a\nroot: all is well'" + "x" * 5000)
    [record] = caplog.records
    assert record.getMessage().isprintable() and len(record.getMessage()) < 500


def test_addresses_in_words() -> None:
    one, two = socket.socketpair()
    with one, two:
        assert address_of(one).endswith("of this host")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            served, _ = listener.accept()
            with served:
                assert address_of(served) == f"127.0.0.1:{client.getsockname()[1]}"
        with socket.socket() as alone:
            assert address_of(alone) == "an unknown address"
