"""Whether a job's processes can use NCCL together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aiodist.backends.cuda import library
from aiodist.backends.nccl import NcclEngine, communicators
from aiodist.backends.nccl.sharing import DeviceFacts, can_share, dotted, misfit

ON = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def told(gpu: str, version: int = 23203, splits: bool = True, shares: bool = False) -> DeviceFacts:
    """What one rank tells."""
    return DeviceFacts(gpu, version, splits, shares)


@pytest.mark.parametrize(
    ("version", "environ", "shares"),
    [
        (23004, ON, True),
        (23203, ON, True),
        (22907, ON, False),
        (23203, {}, False),
        (23203, {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}, False),
        (23203, {"NCCL_MULTI_RANK_GPU_ENABLE": "yes"}, False),
        (23203, {"NCCL_MULTI_RANK_GPU_ENABLE": " 1 "}, True),
    ],
)
def test_which_nccl_lets_ranks_share_a_gpu(version: int, environ: dict[str, str], shares: bool) -> None:
    assert can_share(version, environ) is shares


def test_a_gpu_each_fits() -> None:
    assert misfit([told("a"), told("b"), told("c")]) == ""


def test_ranks_on_one_gpu_are_named() -> None:
    assert misfit([told("a"), told("b"), told("a"), told("a")]) == (
        "ranks 0, 2 and 3 share a GPU, which NCCL 2.32.3 does not allow here "
        "(2.30 and later do, with NCCL_MULTI_RANK_GPU_ENABLE=1)"
    )


def test_ranks_on_one_gpu_fit_where_all_of_them_can() -> None:
    assert misfit([told("a", shares=True), told("a", shares=True), told("b")]) == ""
    assert misfit([told("a", shares=True), told("a")]).startswith("ranks 0 and 1 share")


def test_all_need_one_nccl_and_one_way_to_make_groups() -> None:
    assert misfit([told("a"), told("b"), told("c", 22907)]) == "NCCL: rank 0 has 2.32.3, rank 2 has 2.29.7"
    assert misfit([told("a"), told("b", splits=False)]) == (
        "communicators that can be split: rank 0 has yes, rank 1 has no"
    )


def test_what_is_told_survives_the_way() -> None:
    one = told("f00", shares=True)
    assert DeviceFacts.from_json(one.to_json()) == one
    assert NcclEngine.fits([one.to_json(), told("f00", shares=True).to_json()]) == ""
    assert "share a GPU" in NcclEngine.fits([told("f00").to_json(), told("f00").to_json()])


def test_gpus_that_lie_alike_on_two_hosts_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all that CuPy gives of their UUIDs is nothing."""
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(
            runtime=SimpleNamespace(
                deviceGetPCIBusId=lambda device: "0000:1B:00.0",
                getDeviceProperties=lambda device: {"uuid": b""},
            )
        )
    )
    monkeypatch.setattr(communicators, "load_nccl", lambda: cupy)
    monkeypatch.setattr(communicators, "version", lambda: 23203)
    monkeypatch.setattr(communicators, "can_split", lambda: True)
    tells = []
    for host in ("one", "two"):
        monkeypatch.setattr(library, "host_id", lambda host=host: host, raising=False)
        tells.append(NcclEngine.tell(0))
    assert NcclEngine.fits(tells) == ""
    assert NcclEngine.fits([tells[0], tells[0]]).startswith("ranks 0 and 1 share a GPU")


def test_version_in_words() -> None:
    assert [dotted(version) for version in (21801, 22907, 23203)] == ["2.18.1", "2.29.7", "2.32.3"]
