"""What the environment's variables mean, and that no secret is shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from aiodist.cli.doctor import settings
from aiodist.cli.doctor.topic import Finding, Machine
from tests.cli.doctor.asks import by_name


def found(**environ: str) -> Mapping[str, Finding]:
    """The findings, by name, on a process with these variables."""
    return by_name(settings.findings({}, Machine(environ, ranks=1)))


def test_placement() -> None:
    assert "alone" in found()["placement"].value
    placed = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "8"}
    assert found(**placed)["placement"].value.startswith("rank 3 of 8, by torchrun (RANK=3 ")
    refused = found(RANK="x", WORLD_SIZE="8")["placement"]
    assert (refused.state, refused.value) == ("missing", "RANK='x' is not a number")
    assert refused.cost and refused.fix


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AIODIST_EAGER", "x", "AIODIST_EAGER='x' is neither yes nor no"),
        ("AIODIST_STORE", "here", "AIODIST_STORE='here' is not host:port"),
    ],
)
def test_settings_that_are_refused(name: str, value: str, said: str) -> None:
    assert "settings" not in found()
    refused = found(**{name: value})["settings"]
    assert (refused.state, refused.value) == ("missing", said)
    assert refused.cost and refused.fix


def test_each_setting_that_is_refused_is_told() -> None:
    environ = {"AIODIST_EAGER": "x", "AIODIST_STORE": "here"}
    told = [
        finding for finding in settings.findings({}, Machine(environ, ranks=1)) if finding.name == "settings"
    ]
    assert [finding.state for finding in told] == ["missing", "missing"]


def test_tls(tmp_path: Path) -> None:
    assert found()["TLS"].state == "ok" and found()["TLS"].value.startswith("off: ")
    refused = found(AIODIST_TLS_CERT=str(tmp_path / "none"))["TLS"]
    assert refused.state == "missing" and refused.cost


def test_the_secret(tmp_path: Path) -> None:
    assert found(AIODIST_SECRET="hush" * 4)["secret"].value == "set (AIODIST_SECRET)"
    home = found(HOME=str(tmp_path))["secret"]
    assert home.state == "ok" and home.value.startswith("none yet: ")
    assert list(tmp_path.iterdir()) == []  # none was made
    none = found()["secret"]
    assert none.state == "limited" and "AIODIST_SECRET" in none.fix
    assert "join" in found(AIODIST_ALLOW_INSECURE="1")["secret"].cost
    file = tmp_path / "secret"
    file.write_text("hush" * 4)
    file.chmod(0o666)
    refused = found(AIODIST_SECRET_FILE=str(file))["secret"]
    assert refused.state == "missing" and "hush" not in f"{refused}"
    assert "chmod" in refused.fix


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
    found = by_name(settings.check_variables(environ))
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
