"""The command that tries everything on a GPU, as far as that goes without one: its steps, limits and kit."""

from __future__ import annotations

import lzma
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiodist.backends.nccl import communicators
from tests.gpu import kit, mutations, raw, runner
from tests.gpu.mutations import MUTATIONS, Mutation
from tests.gpu.runner import PARTS, ROOT, Ended, Runner, Step
from tests.levels import MORE, few

NINE_MINUTES = 540.0
ONE = "tests/gpu/test_streams.py::test_operation_begins_after_what_the_callers_stream_was_given"


def has_driver() -> bool:
    """Whether these tests would find what they count on not to be here."""
    return any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))


# ── the switch ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif("has_driver()", reason="there is a driver")
@pytest.mark.parametrize(("value", "code"), few([("", 0), ("0", 0), ("1", 1)], [("1", 1)]))
def test_what_is_missing_fails_where_nothing_may_be(value: str, code: int, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ONE],
        cwd=ROOT,
        env={**os.environ, "AIODIST_TEST_GPU": value},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout
    assert "there is no NVIDIA driver on this machine" in done.stdout
    assert ("AIODIST_TEST_GPU is set" in done.stdout) is bool(code)


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────


def step(name: str, code: str, limit: float = 60.0, several: bool = False) -> Step:
    """One that runs Python code."""
    return Step(name, limit, ("-c", code), several)


@pytest.fixture
def made(tmp_path: Path) -> Runner:
    """A runner."""
    for name in ("out", "scratch"):
        (tmp_path / name).mkdir()
    return Runner(tmp_path / "out", tmp_path / "scratch")


def test_a_part_ends_within_nine_minutes() -> None:
    assert runner.LIMIT < NINE_MINUTES
    for steps in PARTS.values():
        assert all(step.limit < runner.LIMIT for step in steps)
        assert len({step.name for step in steps}) == len(steps)


def test_every_test_for_gpus_is_in_a_step() -> None:
    given = {item.partition("::")[0] for steps in PARTS.values() for step in steps for item in step.command}
    for file in Path(ROOT, "tests", "gpu").glob("test_*.py"):
        assert f"tests/gpu/{file.name}" in given
    for item in given:
        if item.endswith(".py"):
            assert Path(ROOT, item).exists()


def test_step_that_fails_or_does_not_end_stops_none_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = (
        step("raises", "raise SystemExit('on fire')"),
        step("hangs", "import time; print('asleep', flush=True); time.sleep(600)", 5.0),
        step("counts", "print('3 passed, 1 failed, 2 errors in 0.1s'); raise SystemExit(1)"),
        step("well", "print('at the end')"),
    )
    monkeypatch.setitem(PARTS, 1, steps)
    began = time.monotonic()
    assert runner.main(["1", str(tmp_path)]) == 1
    assert time.monotonic() - began < 300
    lines = (tmp_path / "summary.txt").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["part", "1"],
        ["raises", "exit"],
        ["hangs", "LIMIT"],
        ["counts", "exit"],
        ["well", "well"],
    ]
    assert lines[3].endswith("3 passed, 1 failed, 2 error")
    assert (tmp_path / "10-raises.log").read_text() == "on fire\n"
    assert (tmp_path / "11-hangs.log").read_text() == "asleep\n"
    shown = capsys.readouterr().out
    assert "    at the end" in shown
    assert shown.endswith(f"logs are in {tmp_path}\n")


def test_what_a_step_has_started_ends_with_it(made: Runner, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = (
        "import subprocess, sys; from pathlib import Path\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"Path({str(told)!r}).write_text(str(child.pid))\n"
    )
    assert made.run(0, step("leaves", code)).code == 0
    stat = Path(f"/proc/{told.read_text()}/stat")
    until = time.monotonic() + 30
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_no_step_begins_when_the_time_is_over(made: Runner, tmp_path: Path) -> None:
    late = Runner(tmp_path / "out", tmp_path / "scratch", limit=1.0)
    assert late.run(0, step("late", "")) == Ended("late", None, 0.0, {})
    assert Ended("late", None, 0.0, {}).line().split() == ["late", "no", "time", "0.0", "s"]


def test_ranks_that_share_a_gpu_have_the_newer_nccl_and_what_it_needs(made: Runner, tmp_path: Path) -> None:
    alone, several = step("alone", ""), step("several", "", several=True)
    with_kit = Runner(tmp_path / "out", tmp_path / "scratch", Path("/kit/libnccl.so.2"))
    assert made.environment(alone).get("NCCL_MULTI_RANK_GPU_ENABLE") == os.environ.get(
        "NCCL_MULTI_RANK_GPU_ENABLE"
    )
    assert "LD_PRELOAD" not in set(made.environment(several)) - set(os.environ)
    assert with_kit.environment(several)["LD_PRELOAD"] == "/kit/libnccl.so.2"
    assert with_kit.environment(several)["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    (tmp_path / "out" / "setting").write_text("NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1")
    assert made.environment(several)["NCCL_SHM_DISABLE"] == "1"
    assert "NCCL_SHM_DISABLE" not in set(made.environment(alone)) - set(os.environ)
    told = Runner(tmp_path / "out", tmp_path / "scratch", setting="NCCL_P2P_DISABLE=0")
    assert told.environment(several)["NCCL_P2P_DISABLE"] == "0"


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("x\n12 passed, 3 failed, 1 error in 4.5s\n", {"passed": 12, "failed": 3, "error": 1}),
        ("2 deselected, 10 errors in 1.74s", {"deselected": 2, "error": 10}),
        ("5 passed and on", {}),
        ("", {}),
    ],
)
def test_counts_of_tests(output: str, counts: dict[str, int]) -> None:
    assert runner.counts(output) == counts


@pytest.mark.slow(MORE)
@pytest.mark.skipif("has_driver()", reason="there is a driver")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    """The command itself, with the steps that take least."""
    pytest.importorskip("cupy")
    done = subprocess.run(
        [sys.executable, "tests/gpu/run", "1", "--only", "facts", "raw-one-rank"],
        cwd=ROOT,
        env={**os.environ, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1, done.stderr
    assert "cudaErrorInsufficientDriver" in (tmp_path / "12-raw-one-rank.log").read_text()
    assert "driver: 0" in (tmp_path / "10-facts.log").read_text()
    assert "facts                    well" in done.stdout


# ── faults that tests must notice ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_fault_can_be_put_in(mutation: Mutation) -> None:
    assert (ROOT / mutation.path).read_text().count(mutation.old) == 1


@pytest.mark.parametrize(
    ("code", "output", "noticed"),
    [
        (1, "1 failed, 7 deselected in 2.0s", True),
        (1, "7 deselected, 1 error in 2.0s", False),  # there was nothing to run it on
        (0, "1 passed in 2.0s", False),
        (5, "8 deselected in 2.0s", False),
    ],
)
def test_when_a_fault_was_noticed(code: int, output: str, noticed: bool) -> None:
    assert mutations.noticed(code, output) is noticed


def test_copy_with_a_fault_comes_before_what_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the libraries are may be said there alone."""
    (tmp_path / "inherited").mkdir()
    (tmp_path / "inherited" / "somewhere_else.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "inherited"))
    monkeypatch.setattr(mutations, "MUTATIONS", MUTATIONS[:1])
    told = "import somewhere_else; print('1 failed'); raise SystemExit(1)"
    assert mutations.main(tmp_path, [sys.executable, "-c", told]) == 0


@pytest.mark.parametrize(("version", "kind"), [("13.6.0", tuple), ("14.2.0", bytes)])
def test_id_in_the_form_that_a_cupy_takes(version: str, kind: type) -> None:
    unique = bytes(range(100, 228))
    given = raw.accepted(version, unique)
    assert type(given) is kind
    assert given == communicators.as_accepted(SimpleNamespace(__version__=version), unique)


@pytest.mark.timeout(900)
@pytest.mark.slow("a run of the tests for each fault that is put into the code")
def test_faults_are_noticed_on_stand_ins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tests see them; whether they do on a device, which has other times, only a device can say."""
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    command = [sys.executable, *options, "--rootdir", str(ROOT)]
    assert mutations.main(tmp_path, command, "tests/backends/nccl/test_rehearsal.py") == 0, (
        capsys.readouterr()
    )


# ── the kit ──────────────────────────────────────────────────────────────────────────────────────────


def entry(kind: int, architecture: int, code: bytes) -> bytes:
    """Device code for one architecture, as it stands in a library."""
    return struct.pack("<HHIQ12xI32x", kind, 1, 64, len(code), architecture) + code


def binary(*entries: bytes) -> bytes:
    """Device code for several."""
    whole = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(whole)) + whole


def test_device_code_of_other_architectures_is_zeroed_and_nothing_else() -> None:
    parts = [
        entry(2, 80, b"a" * 40),
        entry(2, 90, b"b" * 24),
        entry(1, 90, b"c" * 8),
        entry(2, 100, b"d" * 16),
    ]
    kept = [
        entry(2, 80, bytes(40)),
        entry(2, 90, b"b" * 24),
        entry(1, 90, bytes(8)),
        entry(2, 100, bytes(16)),
    ]
    magic = struct.pack("<I", 0xBA55ED50)
    data = bytearray(b"head" + binary(*parts) + magic + b"no header" + binary(parts[1]) + b"tail" + magic)
    assert kit.blank(data, 90) == (48, 64)
    assert bytes(data) == b"head" + binary(*kept) + magic + b"no header" + binary(parts[1]) + b"tail" + magic


def test_kit_is_made_of_a_library_and_unpacked_for_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, place = tmp_path / "lib.so", tmp_path / "kit"
    source.write_bytes(b"code" + binary(entry(2, 90, b"b" * 8), entry(2, 80, b"a" * 8)))
    assert kit.main([str(place), "--library", str(source)]) == 0
    assert "1 MiB" not in capsys.readouterr().out
    unpacked = runner.library(place, tmp_path)
    assert unpacked == tmp_path / "libnccl.so.2"
    assert unpacked.read_bytes() == b"code" + binary(entry(2, 90, b"b" * 8), entry(2, 80, bytes(8)))
    assert lzma.decompress((place / "libnccl.so.2.xz").read_bytes()) == unpacked.read_bytes()
    assert kit.main([str(place), "--library", str(source), "--arch", "70"]) == 1
    assert "no code for sm_70" in capsys.readouterr().err


def test_kit_may_hold_the_library_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(b"built there")
    assert runner.library(tmp_path, tmp_path / "scratch") == (tmp_path / "libnccl.so.2").resolve()
    assert runner.library(None, tmp_path) is None
    with pytest.raises(SystemExit, match=r"has no libnccl.so.2, nor libnccl.so.2.xz: tests/gpu/prepare"):
        runner.library(tmp_path / "other", tmp_path)
