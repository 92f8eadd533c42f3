"""The pytest plugin: loaded by pytest wherever aiodist is installed. Costs nothing until it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(name="aiodist_cluster")
def cluster_fixture() -> Callable[..., Any]:
    """`run_cluster`: await `aiodist_cluster(4, main)` to run `main(pg)` on four ranks in this process."""
    from aiodist.testing.cluster import run_cluster

    return run_cluster
