"""The pure checks: what was seen → what is said, what it costs, how to mend it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from aiodist.base.environment import Placement
from aiodist.base.environment.busy import Disturbance
from aiodist.base.errors import UsageError
from aiodist.cli.doctor.checks.backends import check_backends, check_host
from aiodist.cli.doctor.checks.devices import check_devices, cuda_version, nccl_version
from aiodist.cli.doctor.checks.libraries import check_mpi, check_torch, library
from aiodist.cli.doctor.checks.network import check_address, check_loopback
from aiodist.cli.doctor.checks.packages import NAMES, check_package
from aiodist.cli.doctor.checks.settings import (
    check_placement,
    check_secret,
    check_tls,
    check_tuning,
    check_variables,
)
from aiodist.cli.doctor.checks.system import check_busy, check_cores, check_kernel, check_open_files
from aiodist.cli.doctor.finding import Finding
from aiodist.cli.doctor.probes.asking import Answer
from aiodist.cli.doctor.probes.network import Told
from aiodist.cli.doctor.probes.system import Kernel, Room

# ── system ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_whole_kernel() -> None:
    found = check_kernel(Kernel("Linux", "6.18.1", "x86_64", memory_bytes=64 << 30))
    assert {finding.state for finding in found} == {"ok"}
    assert "64 GiB" in by_name(found)["shared memory"].value


@pytest.mark.parametrize(
    ("lacks", "name"),
    [
        ("memory", "shared memory"),
        ("pidfd", "pidfd"),
        ("thread_pidfd", "pidfd of threads"),
        ("user_timeout", "TCP_USER_TIMEOUT"),
        ("descriptors", "descriptors over sockets"),
    ],
)
def test_what_a_kernel_lacks_costs_something_and_can_be_mended(lacks: str, name: str) -> None:
    whole = Kernel("Linux", "5.2", "x86_64", memory_bytes=1 << 30)
    lame: dict[str, Any] = {lacks: "Function not implemented"}
    found = by_name(check_kernel(replace(whole, **lame)))
    assert {other for other in found if found[other].state != "ok"} == {name}
    assert found[name].state == "missing" and found[name].value == "Function not implemented"
    assert found[name].cost and found[name].fix


def test_other_systems_and_processors_are_limited() -> None:
    mac = by_name(check_kernel(Kernel("Darwin", "24.1", "arm64", memory="no memfd")))
    assert mac["platform"].state == mac["processor"].state == "limited"
    assert set(mac) == {"platform", "processor"}  # the rest follows from it
    arm = by_name(check_kernel(Kernel("Linux", "6.18", "aarch64")))
    assert arm["platform"].state == "ok" and arm["processor"].state == "limited"


def test_cores_are_those_of_the_affinity_and_the_quota() -> None:
    room = Room(cpus=16, affinity=6, quota=None, open_files=1024, open_files_hard=1024)
    assert check_cores(room, 6).state == "ok"
    assert check_cores(room, 7).state == "limited"
    assert check_cores(room, 7).fix == "aiodist run --nproc-per-node 6 …"
    quota = replace(room, quota=2.5)
    assert check_cores(quota, 2).state == "ok"
    assert check_cores(quota, 3).fix == "aiodist run --nproc-per-node 2 …"
    assert check_cores(quota, 3).value == "2.5 for 3 ranks (affinity 6 of 16 CPUs, quota 2.5)"
    assert check_cores(replace(room, quota=0.5), 1).fix == "aiodist run --nproc-per-node 1 …"


def test_others_that_take_the_cores() -> None:
    assert check_busy(Disturbance(2, 0.04, 0.0, 0.31)) == Finding(
        "idle", "ok", "other processes take 4 % of the cores (load 0.3)"
    )
    assert check_busy(None).state == "ok"  # not Linux
    busy = check_busy(Disturbance(2, 0.42, 0.0, 3.14, "make", 0.8))
    assert busy.state == "limited" and busy.cost and busy.fix
    assert busy.value == "other processes took 42 % of the processors' time, most of it make (load 3.1)"
    elsewhere = check_busy(Disturbance(2, 0.0, 0.2, 3.14))
    assert elsewhere.state == "limited" and "hypervisor" in elsewhere.value
    assert not elsewhere.fix  # nothing here can be ended


def test_open_files() -> None:
    room = Room(cpus=8, affinity=8, quota=None, open_files=1024, open_files_hard=4096)
    assert check_open_files(room, 87).state == "ok"
    short = check_open_files(room, 88)
    assert (short.state, short.fix) == ("limited", "ulimit -n 1032")
    assert check_open_files(room, 1000).fix.startswith("ulimit -Hn 11064, as root")
    assert check_open_files(replace(room, open_files_hard=-1), 1000).fix == "ulimit -n 11064"
    assert check_open_files(replace(room, open_files=-1), 100_000).state == "ok"


# ── packages ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_packages(name: str) -> None:
    assert check_package(name, Answer({"version": "1.2"})).value == "1.2"
    absent = check_package(name, Answer(trouble="x", absent=name))
    broken = check_package(name, Answer(trouble="ImportError: libthing.so", absent="another"))
    assert absent.state == broken.state != "ok"
    assert absent.value == "not installed" and absent.fix.startswith("pip install ")
    assert "libthing.so" in broken.value and "--force-reinstall" in broken.fix
    assert absent.cost == broken.cost != ""


# ── network ──────────────────────────────────────────────────────────────────────────────────────────


def address(unusable: str = "", own: str = "", unreachable: str = "") -> Answer:
    return Answer({"unusable": unusable, "own": own, "unreachable": unreachable})


def test_loopback() -> None:
    assert check_loopback("").state == "ok"
    assert check_loopback("Connection refused").fix == "ip link set lo up"


@pytest.mark.parametrize(
    ("told", "outward", "answer", "state", "word"),
    [
        (Told(), "10.0.0.5", address(), "ok", "10.0.0.5"),
        (Told(), "", address(), "limited", "no route"),
        (Told("10.0.0.5", "AIODIST_HOST"), "10.0.0.5", address(), "ok", "AIODIST_HOST"),
        (Told("10.0.0.9", "AIODIST_HOST"), "", address("Cannot assign"), "missing", "Cannot assign"),
        (Told("h", "AIODIST_HOST"), "", Answer(trouble="no answer within 9 s"), "missing", "no answer"),
        (Told("", "AIODIST_SOCKET_IFNAME", "there is no eth7"), "", address(), "missing", "eth7"),
        (Told(there="a"), "10.0.0.5", address(own="10.1.0.5"), "ok", "10.1.0.5, which leads to a"),
        (Told(there="a"), "10.0.0.5", address(own="127.0.1.1"), "limited", "a is a name of loopback"),
        (Told(there="127.0.0.1"), "10.0.0.5", address(own="127.0.0.1"), "ok", "127.0.0.1"),
    ],
)
def test_the_address_that_peers_are_told(
    told: Told, outward: str, answer: Answer, state: str, word: str
) -> None:
    (found,) = check_address(told, outward, answer)
    assert (found.name, found.state) == ("address", state)
    assert word in found.value
    assert (state == "ok") == (not found.cost) == (not found.fix)


def test_a_meeting_place_that_nobody_knows() -> None:
    found = by_name(check_address(Told(there="nowhere"), "10.0.0.5", address(unreachable="Name not known")))
    assert found["meeting place"].value == "nowhere: Name not known"
    silent = Answer(trouble="no answer within 20 s")
    found = by_name(check_address(Told(there="nowhere"), "10.0.0.5", silent))
    assert found["address"].state == "ok" and found["meeting place"].state == "missing"


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────


def test_placement() -> None:
    assert "alone" in check_placement(Placement(0, 1)).value
    found = check_placement(Placement(3, 8, launcher="torchrun", evidence="RANK=3"))
    assert found.value == "rank 3 of 8, by torchrun (RANK=3)"
    refused = check_placement(UsageError("RANK='x' is not a number", hint="Set it"))
    assert (refused.state, refused.value, refused.fix) == ("missing", "RANK='x' is not a number", "Set it")


def test_settings_that_are_refused() -> None:
    assert list(check_tuning(None)) == []
    (found,) = check_tuning(UsageError("AIODIST_EAGER='x' is neither yes nor no", hint="Write 1 or 0"))
    assert found.state == "missing" and found.fix == "Write 1 or 0"
    assert check_tls(True, None).value == "on"
    assert check_tls(False, None).state == "ok"
    assert check_tls(True, UsageError("it cannot be read")).state == "missing"


def test_the_secret() -> None:
    assert check_secret("set (AIODIST_SECRET)", None, False).state == "ok"
    assert check_secret("none yet: ~/.aiodist/secret is made on first use", None, False).state == "ok"
    none = check_secret("none: loopback only", None, False)
    assert none.state == "limited" and "AIODIST_SECRET" in none.fix
    assert "join" in check_secret("none: loopback only", None, True).cost
    assert check_secret("set (x)", UsageError("open to others", hint="chmod"), False).fix == "chmod"


def test_variables_are_shown_secrets_are_not_and_typos_are_named() -> None:
    environ = {
        "AIODIST_TIMEOUT": "60",
        "AIODIST_SECRET": "hush",
        "AIODIST_ETCD_PASSWORD": "hush",
        "AIODIST_STORE": "etcd://joe:hush@host:2379/x",
        "AIODIST_SECERT": "hush",
        "AIODIST_XYZZY": "hush",
        "aiodist_host": "hush",
        "PATH": "/bin",
    }
    found = by_name(check_variables(environ))
    assert set(found) == environ.keys() - {"PATH"}
    assert not any("hush" in f"{finding}" for finding in found.values())
    assert found["AIODIST_TIMEOUT"].value == "60"
    assert found["AIODIST_STORE"].value == "etcd://…@host:2379/x"
    assert "did you mean AIODIST_SECRET?" in found["AIODIST_SECERT"].value
    assert "did you mean AIODIST_HOST?" in found["aiodist_host"].value
    assert found["AIODIST_XYZZY"].fix == "unset AIODIST_XYZZY"
    assert {name for name in found if found[name].state != "ok"} == {
        "AIODIST_SECERT",
        "AIODIST_XYZZY",
        "aiodist_host",
    }


# ── devices ──────────────────────────────────────────────────────────────────────────────────────────

H200 = {"name": "NVIDIA H200", "memory": 140 << 30, "uuid": "0123456789abcdef", "capability": "9.0"}
WITHOUT: dict[str, Any] = {"nodes": [], "kernel": "", "library": False, "cuda": 0, "trouble": ""}
NO_DRIVER = Answer({**WITHOUT, "devices": [], "separate": []})
NO_CUPY = Answer(trouble="ModuleNotFoundError: No module named 'cupy'", absent="cupy")


def driver(count: int = 1, **more: Any) -> Answer:
    """Of a machine with devices."""
    nodes = [f"nvidia{number}" for number in range(count)]
    facts = {"nodes": nodes, "kernel": "580.1", "library": True, "cuda": 12080, "trouble": ""}
    return Answer({**facts, "devices": [H200] * count, "separate": [], **more})


def cupy(**more: Any) -> Answer:
    """Of a machine with CuPy and NCCL."""
    facts = {"version": "14.2.0", "packages": ["cupy-cuda12x"], "cuda": 12090, "devices": 1, "copied": True}
    sharing = {"shares": False, "could_share": True, "uncompiled": ""}
    return Answer({**facts, "trouble": "", "nccl": 23203, "without": "", **sharing, **more})


def test_a_whole_gpu() -> None:
    found = by_name(check_devices(driver(), cupy(), 1))
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["driver"].value == "CUDA 12.8, driver 580.1"
    assert found["GPU 0"].value == "NVIDIA H200, 140 GiB, compute 9.0, GPU-01234567"
    assert found["CuPy"].value == "14.2.0, CUDA 12.9"
    assert found["NCCL"].value == "2.32.3"
    assert "1 on 1 need not" in found["ranks on one GPU"].value


def test_without_a_gpu_nothing_is_to_be_installed() -> None:
    found = by_name(check_devices(NO_DRIVER, NO_CUPY, 4))
    assert set(found) == {"driver", "CuPy", "NCCL"}
    assert {finding.state for finding in found.values()} == {"missing"}
    assert not any(finding.fix for finding in found.values())
    assert "host tensors are not affected" in found["driver"].cost


@pytest.mark.parametrize(("version", "extra"), [(12080, "cuda12"), (13000, "cuda13"), (13020, "cuda13")])
def test_cupy_is_installed_for_the_driver(version: int, extra: str) -> None:
    found = by_name(check_devices(driver(cuda=version), NO_CUPY, 1))
    assert found["CuPy"].fix == f"pip install 'aiodist[{extra}]'"
    assert found["NCCL"].state == "missing" and not found["NCCL"].fix  # it comes with CuPy
    found = by_name(check_devices(driver(cuda=version), cupy(nccl=0, without="not found"), 1))
    assert found["NCCL"].fix == f"pip install nvidia-nccl-{extra.replace('cuda', 'cu')}"
    assert "slower" in found["NCCL"].cost


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(trouble="it was killed by SIGSEGV"), "SIGSEGV"),
        (Answer(trouble="no answer within 20 s"), "no answer"),
        (driver(devices=[], library=False), "nvidia0 but no libcuda"),
        (driver(devices=[], trouble="CUDA_ERROR_UNKNOWN"), "CUDA_ERROR_UNKNOWN"),
        (driver(devices=[]), "no device can be seen"),
    ],
)
def test_a_broken_driver(answer: Answer, word: str) -> None:
    found = by_name(check_devices(answer, cupy(devices=0, copied=False), 2))["driver"]
    assert found.state == "missing" and word in found.value
    assert found.cost and found.fix


@pytest.mark.parametrize(
    ("answer", "state", "word"),
    [
        (Answer(trouble="ImportError: libnvrtc.so"), "missing", "libnvrtc.so"),
        (cupy(cuda=13000), "missing", "the driver knows CUDA 12.8"),
        (cupy(copied=False, trouble="cudaErrorUnknown"), "missing", "cudaErrorUnknown"),
        (cupy(copied=False), "missing", "did not come back"),
        (cupy(packages=["cupy-cuda12x", "cupy-cuda13x"]), "limited", "cupy-cuda12x and cupy-cuda13x"),
    ],
)
def test_a_broken_cupy(answer: Answer, state: str, word: str) -> None:
    found = by_name(check_devices(driver(), answer, 1))["CuPy"]
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
    found = by_name(check_devices(whole, cupy(uncompiled=said, cuda=major * 1000 + 10), 1))["CuPy"]
    assert found.state == "limited" and found.value.startswith("14.2.0, CUDA 1")
    assert word in found.value and "\n" not in found.value
    assert "not contiguous" in found.cost
    assert found.fix == f"pip install 'aiodist[cuda{major}]'"  # beside the CuPy that is here
    assert by_name(check_devices(NO_DRIVER, cupy(uncompiled=said), 1))["CuPy"].state == "ok"


def test_several_devices() -> None:
    found = by_name(check_devices(driver(2), cupy(), 2))
    assert found["GPU 1"].state == found["peer access"].state == "ok"
    found = by_name(check_devices(driver(2, separate=[[0, 1], [1, 0]]), cupy(), 2))
    assert (found["peer access"].state, found["peer access"].value) == ("limited", "not 0→1, 1→0")


def test_ranks_that_share_a_device_need_an_nccl_that_lets_them() -> None:
    def sharing(ranks: int, **more: Any) -> Finding:
        return by_name(check_devices(driver(2), cupy(**more), ranks))["ranks on one GPU"]

    assert sharing(2, could_share=False).state == "ok"
    old = sharing(3, nccl=22907, could_share=False)
    assert old.state == "limited" and "slower" in old.cost
    assert old.fix == "pip install -U 'nvidia-nccl-cu12>=2.30'"
    assert (sharing(3).state, sharing(3).fix) == ("limited", "export NCCL_MULTI_RANK_GPU_ENABLE=1")
    assert sharing(3, shares=True).state == "ok"
    assert by_name(check_devices(driver(2), NO_CUPY, 3))["ranks on one GPU"].state == "limited"


def test_version_numbers() -> None:
    assert cuda_version(12090) == "12.9" and cuda_version(13000) == "13.0"
    assert nccl_version(23203) == "2.32.3" and nccl_version(22907) == "2.29.7"


# ── libraries ────────────────────────────────────────────────────────────────────────────────────────


def test_torch() -> None:
    def facts(cuda: str, devices: int | None) -> Answer:
        return Answer({"version": "2.13.0", "cuda": cuda, "devices": devices})

    assert check_torch(facts("", None), 0).value == "2.13.0, built without CUDA"
    assert check_torch(facts("12.8", 1), 1).state == "ok"
    assert check_torch(facts("", None), 1).state == "limited"
    assert "sees no device" in check_torch(facts("12.8", 0), 1).value
    assert check_torch(Answer(trouble="x", absent="torch"), 1).fix == "pip install torch"
    assert "libc10.so" in check_torch(Answer(trouble="OSError: libc10.so"), 1).value


def test_mpi() -> None:
    facts = {"version": "4.1.2", "library": "MPICH Version:      5.0.2\nMore"}
    facts |= {"threads": "multiple", "refused": "", "hint": ""}
    assert check_mpi(Answer(facts)).value == "MPICH 5.0.2, mpi4py 4.1.2, threads: multiple"
    refused = check_mpi(Answer({**facts, "refused": "one thread only", "hint": "do this"}))
    assert (refused.state, refused.fix) == ("missing", "do this") and "one thread only" in refused.value
    assert check_mpi(Answer(trouble="x", absent="mpi4py")).fix == "pip install 'aiodist[mpi]'"
    without = {**facts, "library": "", "threads": "", "refused": "no library", "hint": "Install one"}
    found = check_mpi(Answer(without))
    assert (found.state, found.value, found.fix) == ("missing", "no library, mpi4py 4.1.2", "Install one")
    assert check_mpi(Answer(trouble="no answer within 20 s")).state == "missing"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Open MPI v5.0.11, package: Open MPI root@x, ident: 5.0.11", "Open MPI 5.0.11"),
        ("MPICH Version:\t4.2.0\nMPICH Release date: x", "MPICH 4.2.0"),
        ("Intel(R) MPI Library 2021.11 for Linux* OS\n\0", "Intel(R) MPI Library 2021.11 for Linux* OS"),
        ("", "unknown"),
    ],
)
def test_names_of_mpi_libraries(text: str, short: str) -> None:
    assert library(text) == short


# ── backends ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_host_backend() -> None:
    good = Answer({"right": True, "shared": True})
    assert check_host([good, good], True).state == "ok"
    apart = Answer({"right": True, "shared": False})
    assert check_host([apart, apart], True).state == "limited"
    assert check_host([apart, apart], False).state == "ok"
    assert check_host([good, Answer({"right": False, "shared": True})], True).state == "missing"


def test_of_two_ranks_that_failed_the_one_with_a_reason_is_heard() -> None:
    late, reason = Answer(trouble="RendezvousTimeout: rank 1 did not come"), Answer(trouble="it was killed")
    for pair in ([late, reason], [reason, late]):
        assert check_host(pair, True).value == "it was killed"
    assert check_host([late, Answer({"right": True, "shared": True})], True).value == late.trouble


def test_other_backends() -> None:
    facts = {"host": "host", "device": "", "trouble": "", "others": []}
    (found,) = check_backends(Answer(facts))
    assert found.value == "host tensors: host; device tensors: not taken"
    others = [
        {"name": "one", "package": "one-backend 1.0", "trouble": ""},
        {"name": "two", "package": "two-backend 2.0", "trouble": "no libtwo"},
    ]
    seen = by_name(check_backends(Answer({**facts, "device": "nccl", "others": others})))
    assert "device tensors: nccl" in seen["backend=None"].value
    assert seen["one"].state == "ok" and seen["two"].value == "two-backend 2.0: no libtwo"
    assert check_backends(Answer(trouble="it was killed"))[0].state == "missing"
    assert check_backends(Answer({**facts, "trouble": "x"}))[0].state == "missing"


def by_name(findings: Any) -> Mapping[str, Finding]:
    found = {finding.name: finding for finding in findings}
    assert len(found) == len(findings)
    return found
