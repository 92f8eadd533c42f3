"""Drivers: one that a C compiler makes here, and what is said of others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aiodist.cli.doctor.driver import cuda_version, examine, findings
from aiodist.cli.doctor.topic import ProcessAnswer
from tests.cli.doctor.asks import MACHINE, NO_DRIVER, ask, by_name, driver

# The functions that are called, with the prototypes of cuda.h.
DRIVER = r"""
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef int CUresult; typedef int CUdevice; typedef int CUdevice_attribute;
typedef struct { char bytes[16]; } CUuuid;
static int mode(void) { const char *text = getenv("FAKE_DRIVER"); return text ? *text : 0; }
CUresult cuDriverGetVersion(int *v) { *v = 12080; return 0; }
CUresult cuInit(unsigned flags) {
    if (mode() == 'c') abort();
    if (mode() == 'h') for (;;) pause();
    return mode() == 'e' ? 999 : 0;
}
CUresult cuGetErrorName(CUresult e, const char **p) { *p = "CUDA_ERROR_UNKNOWN"; return e == 999 ? 0 : 1; }
CUresult cuDeviceGetCount(int *n) { *n = 3; return 0; }
CUresult cuDeviceGetName(char *p, int n, CUdevice d) {
    strncpy(p, "Device A", n); p[7] += d; return 0;
}
CUresult cuDeviceTotalMem_v2(size_t *n, CUdevice d) { *n = (size_t)(140 + d) << 30; return 0; }
CUresult cuDeviceGetUuid(CUuuid *u, CUdevice d) {
    for (int i = 0; i < 16; i++) u->bytes[i] = (char)(i * 16 * (i % 2) + d); return 0;
}
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
    *v = a == 75 ? 9 : a == 76 ? d : -1; return 0;
}
CUresult cuDeviceCanAccessPeer(int *v, CUdevice a, CUdevice b) { *v = !(a == 1 && b == 2); return 0; }
"""


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that was compiled here."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    command = ["cc", "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.c"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def test_devices_of_a_driver(libcuda: Path) -> None:
    facts = ask(examine, LD_LIBRARY_PATH=str(libcuda)).facts
    assert (facts["library"], facts["cuda"], facts["trouble"]) == (True, 12080, "")
    devices: list[dict[str, Any]] = facts["devices"]
    assert [device["name"] for device in devices] == ["Device A", "Device B", "Device C"]
    assert [device["memory"] >> 30 for device in devices] == [140, 141, 142]
    assert [device["capability"] for device in devices] == ["9.0", "9.1", "9.2"]
    assert devices[0]["uuid"] == "00100030005000700090" + "00b000d000f0"
    assert len({device["uuid"] for device in devices}) == 3  # zeros within do not end it
    assert facts["separate"] == [[1, 2]]


def test_a_driver_that_finds_nothing_crashes_or_hangs(libcuda: Path) -> None:
    path = str(libcuda)
    error = ask(examine, LD_LIBRARY_PATH=path, FAKE_DRIVER="error").facts
    assert (error["trouble"], error["devices"]) == ("CUDA_ERROR_UNKNOWN", [])
    crash = ask(examine, LD_LIBRARY_PATH=path, FAKE_DRIVER="crash")
    assert crash.trouble == "it was killed by SIGABRT"
    hang = ask(examine, LD_LIBRARY_PATH=path, FAKE_DRIVER="hang", limit=0.5)
    assert hang.trouble == "no answer within 0.5 s"


def test_without_a_driver() -> None:
    facts = ask(examine).facts
    if facts["library"]:
        pytest.skip("there is a driver here")
    assert facts["devices"] == [] and facts["cuda"] == 0


def test_a_whole_gpu() -> None:
    found = by_name(findings({"driver": driver()}, MACHINE))
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["driver"].value == "CUDA 12.8, driver 580.1"
    assert found["GPU 0"].value == "NVIDIA H200, 140 GiB, compute 9.0, GPU-01234567"


def test_without_a_gpu_there_is_nothing_to_mend() -> None:
    (found,) = findings({"driver": NO_DRIVER}, MACHINE)
    assert (found.name, found.state, found.fix) == ("driver", "missing", "")
    assert "host tensors are not affected" in found.cost


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (ProcessAnswer(trouble="it was killed by SIGSEGV"), "SIGSEGV"),
        (ProcessAnswer(trouble="no answer within 20 s"), "no answer"),
        (driver(devices=[], library=False), "nvidia0 but no libcuda"),
        (driver(devices=[], trouble="CUDA_ERROR_UNKNOWN"), "CUDA_ERROR_UNKNOWN"),
        (driver(devices=[]), "no device can be seen"),
    ],
)
def test_a_broken_driver(answer: ProcessAnswer, word: str) -> None:
    found = by_name(findings({"driver": answer}, MACHINE))["driver"]
    assert found.state == "missing" and word in found.value
    assert found.cost and found.fix


def test_several_devices() -> None:
    found = by_name(findings({"driver": driver(2)}, MACHINE))
    assert found["GPU 1"].state == found["peer access"].state == "ok"
    found = by_name(findings({"driver": driver(2, separate=[[0, 1], [1, 0]])}, MACHINE))
    assert (found["peer access"].state, found["peer access"].value) == ("limited", "not 0→1, 1→0")


def test_version_numbers() -> None:
    assert cuda_version(12090) == "12.9" and cuda_version(13000) == "13.0"
