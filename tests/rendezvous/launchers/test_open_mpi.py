"""Open MPI's ranks on several hosts: which libpmix they speak, and what is said of MPI afterwards."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from aiodist.rendezvous.launchers import open_mpi, pmix_process
from tests.rendezvous.meeting import rendezvous


class Met(Exception):
    """The ranks would meet now."""


def test_the_daemons_own_libpmix_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader may find another version: that of another Open MPI."""
    tried = []

    def load(name: str, _: int) -> None:
        tried.append(name)
        raise OSError(name)

    maps = b"7f-80 r-xp 0 08:01 1 /opt/lib/libc.so.6\n80-81 r-xp 0 08:01 2 /opt/lib/libpmix.so.2.13.0\n"
    monkeypatch.setattr(pmix_process, "ancestors", lambda: [7])
    monkeypatch.setattr(Path, "read_bytes", lambda path: maps)
    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(OSError, match="there is no libpmix"):
        pmix_process.library()
    assert tried == ["/opt/lib/libpmix.so.2.13.0", "libpmix.so.2"]


@pytest.mark.parametrize(
    ("rank", "old", "mpi4py", "said"),
    [
        ("0", True, False, "MPI_Init fails on Open MPI 4: import mpi4py.MPI before"),
        ("0", False, True, "MPI_Init may hang or crash on Open MPI 5: import mpi4py.MPI before"),
        ("0", False, False, ""),
        ("1", True, True, ""),  # once is enough
    ],
)
async def test_mpi_after_pmix_is_warned_of(
    rank: str,
    old: bool,
    mpi4py: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def meet(*_: object) -> None:
        raise Met

    monkeypatch.setattr(open_mpi, "meet_once", meet)
    monkeypatch.setattr(open_mpi, "find_spec", lambda _: object() if mpi4py else None)
    environ = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "j"}
    environ |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    if old:
        environ["OMPI_MCA_orte_num_nodes"] = "2"
    with pytest.raises(Met):
        await rendezvous("env://", timeout=60, environ=environ, secret=b"s")
    warned = [record.message for record in caplog.records if "by PMIx" in record.message]
    assert len(warned) == bool(said)
    assert all(said in one for one in warned)
