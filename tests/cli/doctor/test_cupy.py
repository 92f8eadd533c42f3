"""CuPy and NCCL: made here, and what is said of them beside each driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aiodist.cli.doctor.cupy import examine, findings, nccl_version
from aiodist.cli.doctor.topic import Finding, Machine, ProcessAnswer
from tests.cli.doctor.asks import NO_DRIVER, ask, by_name, driver, fake
from tests.levels import few

CUPY = """
import types
import numpy as np
__version__ = "14.2.0"
class Array:
    def __init__(self, values): self.values = values
    def get(self): return self.values
    def __getitem__(self, part): return Array(self.values[part])
    def copy(self): {copies}
def asarray(values): return Array(np.array(values))
runtime = types.SimpleNamespace(runtimeGetVersion=lambda: 12090, getDeviceCount=lambda: {devices})
cuda = types.SimpleNamespace(runtime=runtime)
"""


COPIES = [
    (1, "return Array(self.values.copy())", ""),
    (1, "raise RuntimeError('cannot open\\nsource file \"cuda_fp16.h\"')", 'source file "cuda_fp16.h"'),
    (1, "return Array(self.values * 0)", "what was copied is not what it should be"),
    (0, "raise RuntimeError('it is not asked')", ""),
]


@pytest.mark.parametrize(("devices", "copies", "said"), few(COPIES, [COPIES[2]]))
def test_a_cupy_that_compiles_or_not(tmp_path: Path, devices: int, copies: str, said: str) -> None:
    code = CUPY.format(devices=devices, copies=copies)
    facts = ask(examine, PYTHONPATH=fake(tmp_path, "cupy", code)).facts
    assert facts["trouble"] == "" and facts["cuda"] == 12090
    assert facts["copied"] == (devices > 0)
    assert said in facts["uncompiled"] and bool(said) == bool(facts["uncompiled"])


NO_CUPY = ProcessAnswer(trouble="ModuleNotFoundError: No module named 'cupy'", absent="cupy")


def check(driver: ProcessAnswer, cupy: ProcessAnswer, ranks: int) -> Mapping[str, Finding]:
    """The findings, by name, on CuPy beside a driver."""
    return by_name(findings({"driver": driver, "cupy": cupy}, Machine({}, ranks)))


def cupy(**more: Any) -> ProcessAnswer:
    """Of a machine with CuPy and NCCL."""
    facts = {"version": "14.2.0", "packages": ["cupy-cuda12x"], "cuda": 12090, "copied": True}
    sharing = {"shares": False, "could_share": True, "uncompiled": ""}
    return ProcessAnswer({**facts, "trouble": "", "nccl": 23203, "without": "", **sharing, **more})


def test_a_whole_cupy() -> None:
    found = check(driver(), cupy(), 1)
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["CuPy"].value == "14.2.0, CUDA 12.9"
    assert found["NCCL"].value == "2.32.3"
    assert "1 on 1 need not" in found["ranks on one GPU"].value


def test_without_a_gpu_nothing_is_to_be_installed() -> None:
    found = check(NO_DRIVER, NO_CUPY, 4)
    assert set(found) == {"CuPy", "NCCL"}
    assert {finding.state for finding in found.values()} == {"missing"}
    assert not any(finding.fix for finding in found.values())


@pytest.mark.parametrize(("version", "extra"), [(12080, "cuda12"), (13000, "cuda13"), (13020, "cuda13")])
def test_cupy_is_installed_for_the_driver(version: int, extra: str) -> None:
    found = check(driver(cuda=version), NO_CUPY, 1)
    assert found["CuPy"].fix == f"pip install 'aiodist[{extra}]'"
    assert found["NCCL"].state == "missing" and not found["NCCL"].fix  # it comes with CuPy
    found = check(driver(cuda=version), cupy(nccl=0, without="not found"), 1)
    assert found["NCCL"].fix == f"pip install nvidia-nccl-{extra.replace('cuda', 'cu')}"
    assert "slower" in found["NCCL"].cost


@pytest.mark.parametrize(
    ("answer", "state", "word"),
    [
        (ProcessAnswer(trouble="ImportError: libnvrtc.so"), "missing", "libnvrtc.so"),
        (cupy(cuda=13000), "missing", "the driver knows CUDA 12.8"),
        (cupy(copied=False, trouble="cudaErrorUnknown"), "missing", "cudaErrorUnknown"),
        (cupy(copied=False), "missing", "did not come back"),
        (cupy(packages=["cupy-cuda12x", "cupy-cuda13x"]), "limited", "cupy-cuda12x and cupy-cuda13x"),
    ],
)
def test_a_broken_cupy(answer: ProcessAnswer, state: str, word: str) -> None:
    found = check(driver(), answer, 1)["CuPy"]
    assert found.state == state and word in found.value
    assert found.cost and found.fix


NVRTC_14 = 'DynamicLibNotFoundError: Failure finding "libnvrtc.so.13 or libnvrtc.so.12": No such file: \n'
NVRTC_13 = "RuntimeError: CuPy failed to load libnvrtc.so.12: OSError: cannot open shared object file"
HEADERS = """CompileException: /a/float16.cuh(19): catastrophic error: cannot open source file "cuda_fp16.h"
  #include <cuda_fp16.h>
1 catastrophic error detected in the compilation of "a.cu".
"""


@pytest.mark.parametrize(
    ("said", "word"),
    [
        (NVRTC_14, "CUDA's compiler (NVRTC) is missing"),
        (NVRTC_13, "CUDA's compiler (NVRTC) is missing"),
        (HEADERS, "CUDA's headers (cuda_fp16.h) are missing"),
        ("NVRTCError: NVRTC_ERROR_OUT_OF_MEMORY (1)\n", "it compiles nothing: NVRTCError: NVRTC_ERROR_OUT"),
        ("a copy is not what it should be", "it compiles nothing: a copy is not what"),
    ],
)
@pytest.mark.parametrize("major", [12, 13])
def test_a_cupy_that_cannot_compile(said: str, word: str, major: int) -> None:
    whole = driver(cuda=13000)
    found = check(whole, cupy(uncompiled=said, cuda=major * 1000 + 10), 1)["CuPy"]
    assert found.state == "limited" and found.value.startswith("14.2.0, CUDA 1")
    assert word in found.value and "\n" not in found.value
    assert "not contiguous" in found.cost
    assert found.fix == f"pip install 'aiodist[cuda{major}]'"  # beside the CuPy that is here
    assert check(NO_DRIVER, cupy(uncompiled=said), 1)["CuPy"].state == "ok"


def test_ranks_that_share_a_device_need_an_nccl_that_lets_them() -> None:
    def sharing(ranks: int, **more: Any) -> Finding:
        return check(driver(2), cupy(**more), ranks)["ranks on one GPU"]

    assert sharing(2, could_share=False).state == "ok"
    old = sharing(3, nccl=22907, could_share=False)
    assert old.state == "limited" and "slower" in old.cost
    assert old.fix == "pip install -U 'nvidia-nccl-cu12>=2.30'"
    assert (sharing(3).state, sharing(3).fix) == ("limited", "export NCCL_MULTI_RANK_GPU_ENABLE=1")
    assert sharing(3, shares=True).state == "ok"
    assert check(driver(2), NO_CUPY, 3)["ranks on one GPU"].state == "limited"


def test_version_numbers() -> None:
    assert nccl_version(23203) == "2.32.3" and nccl_version(22907) == "2.29.7"
