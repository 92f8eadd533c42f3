"""The probes: on this machine, on libraries that are broken, and on a driver that a C compiler makes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aiodist.cli.doctor.apart import PROBES
from aiodist.cli.doctor.probes import asking
from aiodist.cli.doctor.probes.asking import Answer, Question
from aiodist.cli.doctor.probes.network import Told, loopback, told
from aiodist.cli.doctor.probes.system import kernel, room
from aiodist.cli.doctor.text import describe, one_line


def ask(name: str, *arguments: str, limit: float = 60, **environ: str) -> Answer:
    question = Question(name, arguments, {**os.environ, **environ})
    return asking.ask([question], limit)[0]


def fake(folder: Path, name: str, code: str) -> str:
    """A package of that name, for PYTHONPATH."""
    (folder / f"{name}.py").write_text(code)
    return str(folder)


def test_the_kernel_of_this_machine() -> None:
    seen = kernel()
    assert seen.system == "Linux"
    assert (seen.memory, seen.pidfd, seen.user_timeout, seen.descriptors) == ("", "", "", "")
    assert seen.memory_bytes >= 16 << 20


def test_the_room_of_this_machine() -> None:
    space = room()
    assert space.affinity == len(os.sched_getaffinity(0))
    assert 0 < space.cores <= space.affinity <= space.cpus
    assert space.open_files > 0 or space.open_files == -1


def test_packages(tmp_path: Path) -> None:
    assert ask("package", "numpy").facts["version"].count(".") == 2
    assert ask("package", "no_such_package_anywhere").absent == "no_such_package_anywhere"
    path = fake(tmp_path, "lame_one", "raise RuntimeError('its library is too old')")
    assert ask("package", "lame_one", PYTHONPATH=path).trouble == "RuntimeError: its library is too old"
    path = fake(tmp_path, "lame_two", "import no_such_package_anywhere")
    assert ask("package", "lame_two", PYTHONPATH=path).absent == "no_such_package_anywhere"
    path = fake(tmp_path, "plain", "")
    assert ask("package", "plain", PYTHONPATH=path).facts == {"version": ""}


def test_loopback() -> None:
    assert loopback() == ""


def test_addresses_that_the_environment_names() -> None:
    assert told({}) == Told()
    assert told({"MASTER_ADDR": "a", "AIODIST_HOST": "b"}) == Told("b", "AIODIST_HOST", "", "a")
    assert told({"MASTER_ADDR": "a", "AIODIST_STORE": "c:1"}).there == "c"
    assert told({"AIODIST_STORE": "etcd://joe:x@c:2379,d:2379/jobs"}).there == "c"
    assert told({"AIODIST_STORE": "[fd80::1]:7"}).there == "fd80::1"
    assert told({"AIODIST_SOCKET_IFNAME": "lo"}) == Told("127.0.0.1", "AIODIST_SOCKET_IFNAME")
    assert "no network interface 'eth77'" in told({"AIODIST_SOCKET_IFNAME": "eth77"}).trouble


def test_the_address_towards_another_host() -> None:
    assert ask("address", "127.0.0.1", "127.0.0.1").facts == {
        "unusable": "",
        "own": "127.0.0.1",
        "unreachable": "",
    }
    found = ask("address", "192.0.2.77", "no.such.host.invalid").facts
    assert found["unusable"] and found["unreachable"] and not found["own"]


def test_every_probe_exists() -> None:
    folder = Path(__file__).parents[3] / "aiodist" / "cli" / "doctor" / "apart"
    assert {path.stem.removesuffix("_probe") for path in folder.glob("*_probe.py")} == PROBES


def test_a_pair(tmp_path: Path) -> None:
    for transport, shared in (("auto", True), ("tcp", False)):
        environ = {**os.environ, "AIODIST_TRANSPORT": transport}
        url = (tmp_path / f"{transport} 100%").as_uri()
        questions = [Question("pair", (rank, url, "60"), environ) for rank in "01"]
        assert asking.ask(questions, 90) == [Answer({"right": True, "shared": shared})] * 2


def test_backends_of_other_packages(tmp_path: Path) -> None:
    code = (
        "from aiodist.backends.foreign import Engine\n"
        "from aiodist.base.errors import BackendUnavailable\n"
        "class Good(Engine): name = 'good'\n"
        "class Lame(Engine):\n"
        "    name = 'lame'\n"
        "    @classmethod\n"
        "    def check(cls): raise BackendUnavailable('there is no liblame', hint='Get one')\n"
    )
    points = {
        "good": "mine:Good",
        "lame": "mine:Lame",
        "gone": "mine:Gone",
        "host": "mine:Good",
        "MPI": "mine:Good",
    }
    folder = tmp_path / "mine-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.5\n")
    lines = [f"{name} = {where}" for name, where in points.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[aiodist.backends]", *lines, ""]))
    facts = ask("backends", PYTHONPATH=fake(tmp_path, "mine", code)).facts
    assert (facts["host"], facts["trouble"]) == ("host", "")
    mine = {other["name"]: other["trouble"] for other in facts["others"] if other["package"] == "mine 1.5"}
    assert mine.keys() == points.keys()
    assert mine["good"] == "" and mine["lame"] == "there is no liblame. Get one"
    assert "Gone" in mine["gone"] and mine["host"] == mine["MPI"] == "the name is aiodist's own"


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


@pytest.mark.parametrize(
    ("devices", "copies", "said"),
    [
        (1, "return Array(self.values.copy())", ""),
        (1, "raise RuntimeError('cannot open\\nsource file \"cuda_fp16.h\"')", 'source file "cuda_fp16.h"'),
        (1, "return Array(self.values * 0)", "what was copied is not what it should be"),
        (0, "raise RuntimeError('it is not asked')", ""),
    ],
)
def test_a_cupy_that_compiles_or_not(tmp_path: Path, devices: int, copies: str, said: str) -> None:
    code = CUPY.format(devices=devices, copies=copies)
    facts = ask("cupy", PYTHONPATH=fake(tmp_path, "cupy", code)).facts
    assert facts["devices"] == devices and facts["trouble"] == ""
    assert facts["copied"] == (devices > 0)
    assert said in facts["uncompiled"] and bool(said) == bool(facts["uncompiled"])


def test_what_a_library_prints_is_not_its_answer(tmp_path: Path) -> None:
    code = (
        "print('welcome to cupy'); import os; os.write(1, b'{}'); raise ImportError('libfoo.so: not there')"
    )
    answer = ask("cupy", PYTHONPATH=fake(tmp_path, "cupy", code))
    assert answer == Answer(trouble="ImportError: libfoo.so: not there")


def test_a_library_that_is_not_here(tmp_path: Path) -> None:
    code = "raise ModuleNotFoundError('No module named mpi4py', name='mpi4py')"
    assert ask("mpi", PYTHONPATH=fake(tmp_path, "mpi4py", code)).absent == "mpi4py"


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_mpi_without_its_library_is_told_as_the_backend_tells_it() -> None:
    facts = ask("mpi", MPI4PY_LIBMPI="/no/such/libmpi.so").facts
    assert (facts["library"], facts["threads"]) == ("", "")
    code = "import asyncio, aiodist; asyncio.run(aiodist.init_process_group('mpi'))"
    environ = {**os.environ, "MPI4PY_LIBMPI": "/no/such/libmpi.so"}
    ended = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1].endswith(f"{facts['refused']}. {facts['hint']}")


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was killed by SIGSEGV"),
        ("import os, sys; sys.stderr.write('no driver\\n'); sys.stderr.flush(); os._exit(3)", "code 3"),
        ("import os; os._exit(0)", "ended with exit code 0 and said nothing"),
    ],
)
def test_a_library_that_ends_the_process(tmp_path: Path, code: str, word: str) -> None:
    answer = ask("cupy", PYTHONPATH=fake(tmp_path, "cupy", code))
    assert word in answer.trouble and not answer.facts
    assert ("no driver" in answer.trouble) == ("no driver" in code)


def test_a_library_that_hangs(tmp_path: Path) -> None:
    path = fake(tmp_path, "cupy", "import signal\nwhile True: signal.pause()")
    assert ask("cupy", limit=0.5, PYTHONPATH=path) == Answer(trouble="no answer within 0.5 s")


def test_what_a_library_leaves_running_is_ended(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = (
        "import subprocess\n"
        f"out = open({str(fifo)!r}, 'w')\n"
        "print('x', file=out, flush=True)\n"
        "subprocess.Popen(['sleep', '600'], stdout=out)\n"
        "raise ImportError('y')\n"
    )
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert ask("cupy", PYTHONPATH=fake(tmp_path, "cupy", code)) == Answer(trouble="ImportError: y")
        os.set_blocking(reader, True)
        assert os.read(reader, 10) == b"x\n"
        assert os.read(reader, 10) == b""  # once everybody who could write is gone
    finally:
        os.close(reader)


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    assert "no process can be started" in ask("driver").trouble


def test_errors_in_one_line() -> None:
    wrapped = ImportError("=" * 60 + "\nFailed to import.\n" + "=" * 60)
    wrapped.__cause__ = OSError("libcuda.so.1: cannot open\nshared object")
    assert describe(wrapped) == "OSError: libcuda.so.1: cannot open shared object"
    assert describe(KeyError()) == "KeyError"
    assert one_line("====\na  b\n----") == "a b"
    assert len(one_line("x" * 1000)) == 160


# ── a driver ─────────────────────────────────────────────────────────────────────────────────────────

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
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that was compiled here."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    command = ["cc", "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.c"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def test_devices_of_a_driver(driver: Path) -> None:
    facts = ask("driver", LD_LIBRARY_PATH=str(driver)).facts
    assert (facts["library"], facts["cuda"], facts["trouble"]) == (True, 12080, "")
    devices: list[dict[str, Any]] = facts["devices"]
    assert [device["name"] for device in devices] == ["Device A", "Device B", "Device C"]
    assert [device["memory"] >> 30 for device in devices] == [140, 141, 142]
    assert [device["capability"] for device in devices] == ["9.0", "9.1", "9.2"]
    assert devices[0]["uuid"] == "00100030005000700090" + "00b000d000f0"
    assert len({device["uuid"] for device in devices}) == 3  # zeros within do not end it
    assert facts["separate"] == [[1, 2]]


def test_a_driver_that_finds_nothing_crashes_or_hangs(driver: Path) -> None:
    path = str(driver)
    error = ask("driver", LD_LIBRARY_PATH=path, FAKE_DRIVER="error").facts
    assert (error["trouble"], error["devices"]) == ("CUDA_ERROR_UNKNOWN", [])
    crash = ask("driver", LD_LIBRARY_PATH=path, FAKE_DRIVER="crash")
    assert crash.trouble == "it was killed by SIGABRT"
    hang = ask("driver", LD_LIBRARY_PATH=path, FAKE_DRIVER="hang", limit=0.5)
    assert hang.trouble == "no answer within 0.5 s"


def test_without_a_driver() -> None:
    facts = ask("driver").facts
    if facts["library"]:
        pytest.skip("there is a driver here")
    assert facts["devices"] == [] and facts["cuda"] == 0
