"""What is missing is said in words, as it really is here; and which device a process uses."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import aiodist as dist
from aiodist.backends.cuda import library
from tests.levels import COSTLY


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


@pytest.mark.slow(COSTLY)
def test_importing_the_backends_imports_none_of_their_libraries() -> None:
    code = (
        "import sys, aiodist.backends.nccl, aiodist.backends.cuda.completion, aiodist.backends.cuda.waiter\n"
        "print([name for name in ('cupy', 'cupy_backends', 'torch') if name in sys.modules])"
    )
    assert run(code) == "[]"


@pytest.mark.slow(COSTLY)
def test_without_cupy_the_one_thing_to_install_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['cupy'] = None\n"
        "from aiodist.backends.nccl import NcclEngine\n"
        "try: NcclEngine.check()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = run(code)
    assert said.startswith("BackendUnavailable device tensors need CuPy, which is not installed. pip install")
    assert "'aiodist[cuda12]'" in said


def test_without_a_driver_nobody_is_sent_to_install_cupy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for here, words in ((False, "Nor is an NVIDIA driver here"), (True, r"\[cuda13\]'$")):
        monkeypatch.setattr(library, "has_driver", lambda here=here: here)
        with pytest.raises(dist.BackendUnavailable, match=words):
            library.load()


def test_cupy_that_cannot_be_imported_is_not_called_missing() -> None:
    code = (
        "import sys\n"
        "sys.modules['cupy_backends'] = None\n"
        "from aiodist.backends.cuda import library\n"
        "try: library.load()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    pytest.importorskip("cupy")
    assert run(code).startswith("BackendUnavailable CuPy is installed and cannot be imported (")


def test_machine_without_a_driver_says_so() -> None:
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.driverGetVersion():
        pytest.skip("there is a driver")
    with pytest.raises(dist.BackendUnavailable, match=r"no NVIDIA driver on this machine\. Install"):
        library.load()
    with pytest.raises(dist.BackendUnavailable, match="no NVIDIA driver"):
        library.choose_device(0, {})


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""


class Driver:
    """The driver's answers on machines that are not this one: words only, nothing is computed."""

    CUDARuntimeError = CUDARuntimeError

    def __init__(self, error: str, driver: int) -> None:
        self.error, self.driver = error, driver

    def getDeviceCount(self) -> int:  # noqa: N802
        if self.error:
            raise CUDARuntimeError(self.error)
        return 0

    def driverGetVersion(self) -> int:  # noqa: N802
        return self.driver

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return 12090


@pytest.mark.parametrize(
    ("error", "driver", "words"),
    [
        ("cudaErrorInsufficientDriver: …", 0, "no NVIDIA driver"),
        ("cudaErrorInsufficientDriver: …", 11040, "driver is for CUDA 11.4, and CuPy here for 12.9. Update"),
        ("cudaErrorUnknown: unknown error", 12090, r"CUDA cannot start here \(cudaErrorUnknown"),
    ],
)
def test_drivers_that_do_not_do(error: str, driver: int, words: str) -> None:
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=Driver(error, driver)))
    with pytest.raises(dist.BackendUnavailable, match=words):
        library.count_devices(cupy)


@pytest.mark.parametrize("error", ["", "cudaErrorNoDevice: no CUDA-capable device is detected"])
def test_driver_without_devices(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=Driver(error, 12090)))
    monkeypatch.setattr(library, "import_cupy", lambda: cupy)
    with pytest.raises(dist.BackendUnavailable, match=r"no CUDA device is visible.*CUDA_VISIBLE_DEVICES"):
        library.load()


TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("device_id", "environ", "count", "index"),
    [
        (None, {}, 4, 0),
        (None, TORCHRUN, 8, 5),
        (None, TORCHRUN, 4, 1),
        (3, TORCHRUN, 4, 3),
        ("cuda:2", TORCHRUN, 4, 2),
        ("cuda", TORCHRUN, 4, 1),
        (SimpleNamespace(type="cuda", index=3), TORCHRUN, 4, 3),
        (SimpleNamespace(type="cuda", index=None), TORCHRUN, 4, 1),
        (None, {"RANK": "5"}, 4, 0),  # half a placement, the rest may be arguments
    ],
)
def test_device_of_a_process(device_id: Any, environ: dict[str, str], count: int, index: int) -> None:
    assert library.pick(device_id, environ, count) == index


def test_torch_device_is_understood() -> None:
    torch = pytest.importorskip("torch")
    assert library.pick(torch.device("cuda:1"), {}, 2) == 1
    with pytest.raises(dist.UsageError, match="names no CUDA device"):
        library.pick(torch.device("cpu"), {}, 2)


@pytest.mark.parametrize("device_id", ["cpu", "cuda:x", "1", 1.0, True, object()])
def test_what_names_no_device(device_id: Any) -> None:
    with pytest.raises(dist.UsageError, match="names no CUDA device"):
        library.pick(device_id, {}, 2)


class Gpu:
    """A driver that sees one GPU. Its UUID is as CuPy gives it: what comes before the first zero byte."""

    def __init__(self, place: str, uuid: bytes) -> None:
        self._place, self._uuid = place, uuid

    def deviceGetPCIBusId(self, device: int) -> str:  # noqa: N802
        return self._place

    def getDeviceProperties(self, device: int) -> dict[str, bytes]:  # noqa: N802
        return {"uuid": self._uuid.partition(b"\0")[0]}


def test_gpus_of_two_hosts_are_not_one_though_they_lie_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(host: str, place: str, uuid: bytes) -> str:
        monkeypatch.setattr(library, "host_id", lambda: host)
        return library.identity_of(SimpleNamespace(cuda=SimpleNamespace(runtime=Gpu(place, uuid))), 0)

    first = identity("one", "0000:1B:00.0", b"\0" + b"a" * 15)
    assert identity("one", "0000:1B:00.0", b"\0" + b"a" * 15) == first  # of another process
    others = [
        identity("two", "0000:1B:00.0", b"\0" + b"b" * 15),
        identity("one", "0000:3D:00.0", b"\0" + b"c" * 15),
    ]
    assert first not in others


@pytest.mark.parametrize("device_id", [2, -1, "cuda:7"])
def test_device_that_is_not_here(device_id: Any) -> None:
    with pytest.raises(dist.UsageError, match=r"this process sees 2 CUDA devices\. Use 0 to 1"):
        library.pick(device_id, {}, 2)


def test_names_that_are_used_are_in_this_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    runtime = [
        *("CUDARuntimeError", "getDeviceCount", "driverGetVersion", "runtimeGetVersion"),
        *("deviceGetPCIBusId", "eventRecord", "streamWaitEvent"),
    ]
    cuda = ["Device", "Event", "MemoryPointer", "Stream", "UnownedMemory", "get_current_stream"]
    module = ["asnumpy", "bitwise_and", "bitwise_or", "bitwise_xor", "copyto", "empty", "isnan", "multiply"]
    module += ["ndarray", "uint16", "uint32", "float32", "where"]
    assert [name for name in runtime if not hasattr(cupy.cuda.runtime, name)] == []
    assert [name for name in cuda if not hasattr(cupy.cuda, name)] == []
    assert [name for name in module if not hasattr(cupy, name)] == []
