"""What other libraries move is not encrypted by the job's TLS: whoever sets both is told so, once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec

import pytest

from aiodist.group.runtime.member import warn_of_plain_traffic
from tests.integration.test_mpi import BOTH, well
from tests.levels import COSTLY

SAID = "TLS is set, but backend 'mpi' moves tensors by its own connections, which are not encrypted"


@pytest.mark.slow(COSTLY)
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@BOTH
def test_mpi_beside_tls_is_announced_once_a_job(
    flavour: str, certificates: Callable[[str], dict[str, str]]
) -> None:
    assert well(flavour, "wiretapped", 2, **certificates("ours")).stderr.count(SAID) == 1
    assert SAID not in well(flavour, "wiretapped", 2).stderr


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("cpu:host,cuda:nccl", "backend 'nccl' moves"),
        ("cpu:mpi,cuda:nccl", "backend 'mpi' and 'nccl' moves"),
        ("cpu:host,cuda:host", ""),
        ("host", ""),
    ],
)
def test_who_is_named(backend: str, names: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "aiodist")
    warn_of_plain_traffic.cache_clear()
    for _ in range(2):
        warn_of_plain_traffic(backend)
    assert [names in record.getMessage() for record in caplog.records] == [True] * bool(names)
