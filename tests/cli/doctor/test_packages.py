"""Packages that are here, missing or broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiodist.cli.doctor.packages import NAMES, check, examine
from aiodist.cli.doctor.topic import ProcessAnswer
from tests.cli.doctor.asks import ask, fake


def test_looks_at_packages(tmp_path: Path) -> None:
    assert ask(examine, "numpy").facts["version"].count(".") == 2
    assert ask(examine, "no_such_package_anywhere").absent == "no_such_package_anywhere"
    path = fake(tmp_path, "lame_one", "raise RuntimeError('its library is too old')")
    assert ask(examine, "lame_one", PYTHONPATH=path).trouble == "RuntimeError: its library is too old"
    path = fake(tmp_path, "lame_two", "import no_such_package_anywhere")
    assert ask(examine, "lame_two", PYTHONPATH=path).absent == "no_such_package_anywhere"
    path = fake(tmp_path, "plain", "")
    assert ask(examine, "plain", PYTHONPATH=path).facts == {"version": ""}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_packages(name: str) -> None:
    assert check(name, ProcessAnswer({"version": "1.2"})).value == "1.2"
    absent = check(name, ProcessAnswer(trouble="x", absent=name))
    broken = check(name, ProcessAnswer(trouble="ImportError: libthing.so", absent="another"))
    assert absent.state == broken.state != "ok"
    assert absent.value == "not installed" and absent.fix.startswith("pip install ")
    assert "libthing.so" in broken.value and "--force-reinstall" in broken.fix
    assert absent.cost == broken.cost != ""
