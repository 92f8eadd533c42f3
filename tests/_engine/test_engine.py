"""Which engine a process uses, by its variable, by what is installed, and by the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aiodist
from aiodist import _engine
from aiodist.cli.doctor.packages import engine
from tests.helpers import needs_the_engine

SHOW = "from aiodist import _engine; print(_engine.describe())"


def described(path: Path, choice: str = "") -> str:
    """What a process says whose aiodist is that of a folder, and whose extension is where this one's is."""
    environ = os.environ | {"AIODIST_ENGINE": choice, "PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, "-c", SHOW], cwd=path, env=environ, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with a copy of the package's sources."""
    source = Path(aiodist.__file__).parent
    shutil.copytree(source, tmp_path / "aiodist", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def test_a_clone_uses_the_installed_extension_if_it_was_made_of_the_same_sources(clone: Path) -> None:
    needs_the_engine()
    here = Path(_engine.__file__).parent
    for path in (Path(entry) for entry in _engine.__path__):
        for made in path.glob("*.so"):  # where this installation has it beside its sources
            if path == here:
                shutil.copy(made, clone / "aiodist" / "_engine")
    assert described(clone) == described(clone, "compiled") == f"compiled ({_engine.NAME})"
    assert described(clone, "python") == "plain Python: AIODIST_ENGINE=python"
    with (clone / "aiodist" / "_engine" / "loops.h").open("a") as file:
        file.write("\n/* changed */\n")
    stale = described(clone)
    assert stale.startswith("plain Python: the installed one was made of other sources")
    assert described(clone, "compiled") == stale  # `init_process_group` refuses that


def test_without_an_extension_it_is_plain_python(clone: Path) -> None:
    code = f"import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; {SHOW}"
    environ = {"PYTHONPATH": str(clone), "PATH": os.environ["PATH"]}
    found = subprocess.run(
        [sys.executable, "-S", "-c", code.replace("sys.path = ", "sys.path[:] = ")],
        cwd=clone,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == "plain Python: it is not installed", found.stderr


def test_odd_entries_of_the_path_are_passed_over(clone: Path) -> None:
    archive = clone / "a.zip"
    archive.write_bytes(b"no archive")
    entries = [b"/bytes", None, 7, "x" * 5000, str(archive), str(clone / "missing"), ""]
    code = f"import sys; sys.path.extend({entries!r}); {SHOW}"
    subprocess.run([sys.executable, "-c", code], cwd=clone, check=True, capture_output=True)


async def test_a_process_that_must_have_it_is_refused_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "compiled", None)
    monkeypatch.setenv("AIODIST_ENGINE", "compiled")
    with pytest.raises(aiodist.BackendUnavailable, match="AIODIST_ENGINE=compiled, but aiodist runs by"):
        await aiodist.init_process_group(world_size=1, rank=0)
    monkeypatch.setenv("AIODIST_ENGINE", "fast")
    with pytest.raises(aiodist.UsageError, match="It can be: auto, compiled, python"):
        await aiodist.init_process_group(world_size=1, rank=0)


def test_the_doctor_says_which() -> None:
    assert engine(True, "compiled (x)")[:3] == ("engine", "ok", "compiled (x)")
    found = engine(False, "plain Python: it is not installed")
    assert found.state == "limited" and "C compiler" in found.fix
