"""Job, secret and tuning variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiodist.base.environment import Tuning, job_id, secret, split_address, store_url, tuning
from aiodist.base.environment.thresholds import DEFAULTS
from aiodist.base.errors import UsageError


def test_nothing_set() -> None:
    assert tuning({}) == Tuning("auto", True, 300.0, None, None, False)
    assert tuning({"AIODIST_TRANSPORT": "", "AIODIST_TIMEOUT": ""}) == Tuning()
    assert job_id({}) == "aiodist"
    assert secret({}) == b""
    assert tuning({}).eager_budget == 65536


def test_everything_set() -> None:
    environ = {
        "AIODIST_TRANSPORT": "TCP",
        "AIODIST_EAGER": "0",
        "AIODIST_TIMEOUT": "2.5",
        "AIODIST_HOST": "10.0.0.1",
        "AIODIST_ALLOW_INSECURE": "yes",
    }
    found = tuning(environ)
    assert found == Tuning("tcp", False, 2.5, "10.0.0.1", None, True)
    assert found.eager_budget == 0
    expected = {"AIODIST_TRANSPORT": "tcp", "AIODIST_EAGER": "0", "AIODIST_TLS": "0", **DEFAULTS.agreed}
    assert found.agreed.items() >= expected.items()
    assert tuning({"AIODIST_SOCKET_IFNAME": "eth0"}).interface == "eth0"
    assert job_id({"TORCHELASTIC_RUN_ID": "r"}) == "r"
    assert job_id({"TORCHELASTIC_RUN_ID": "r", "AIODIST_JOB": "j"}) == "j"
    assert job_id({"AIODIST_JOB": "Jörg"}) == "Jörg"


@pytest.mark.parametrize("name", ["AIODIST_JOB", "TORCHELASTIC_RUN_ID"])
def test_job_that_is_no_text(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}='J\\udcf6rg' is not UTF-8"):
        job_id({name: os.fsdecode(b"J\xf6rg")})


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("AIODIST_TRANSPORT", "ib", "auto, shm, tcp"),
        ("AIODIST_EAGER", "maybe", "1 or 0"),
        ("AIODIST_TIMEOUT", "0", "300"),
        ("AIODIST_TIMEOUT", "-1", "300"),
        ("AIODIST_TIMEOUT", "inf", "300"),
        ("AIODIST_TIMEOUT", "soon", "300"),
    ],
)
def test_values_without_meaning(name: str, value: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        tuning({name: value})
    assert f"{name}='{value}'" in caught.value.message
    assert hint in caught.value.hint


def test_signs_of_life() -> None:
    found = tuning({"AIODIST_HEARTBEAT": "0.5", "AIODIST_EVICT_AFTER": "3600"})
    assert (found.heartbeat, found.warn_after, found.evict_after) == (0.5, 5.0, 3600.0)
    assert found.evict_silent_after == 3600.0  # never less than for who is known to be stopped
    # Who says nothing for longer than the others expect would be given up.
    agreed = {"AIODIST_HEARTBEAT": "0.5", "AIODIST_EVICT_AFTER": "3600", "AIODIST_EVICT_SILENT_AFTER": "3600"}
    assert found.agreed.items() >= {**agreed, "AIODIST_WARN_AFTER": "5"}.items()
    usual = tuning({})
    assert (usual.warn_after, usual.evict_after, usual.evict_silent_after) == (5.0, 30.0, 600.0)
    assert tuning({"AIODIST_HEARTBEAT": "3"}).warn_after == 12.0
    for name in ("AIODIST_EVICT_AFTER", "AIODIST_WARN_AFTER"):
        with pytest.raises(UsageError, match=f"{name}=1 is less than four times AIODIST_HEARTBEAT"):
            tuning({"AIODIST_HEARTBEAT": "0.5", name: "1"})
    with pytest.raises(UsageError, match="AIODIST_EVICT_SILENT_AFTER=20 is less than AIODIST_EVICT_AFTER=30"):
        tuning({"AIODIST_EVICT_SILENT_AFTER": "20"})


def test_host_or_interface() -> None:
    with pytest.raises(UsageError, match="both set"):
        tuning({"AIODIST_HOST": "a", "AIODIST_SOCKET_IFNAME": "b"})


def test_the_secret_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    environ = {"AIODIST_SECRET_FILE": str(file)}
    with pytest.raises(UsageError, match="cannot be read"):
        secret(environ)
    file.touch(0o600)
    with pytest.raises(UsageError, match="is empty"):
        secret(environ)
    file.write_bytes(b"hush\n")
    assert secret(environ) == b"hush"
    assert secret({**environ, "AIODIST_SECRET": "louder"}) == b"louder"
    file.chmod(0o644)
    with pytest.raises(UsageError, match="read by other users"):
        secret(environ)


def test_addresses() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    for text in ("host", "host:", ":80", "host:x", "::1:80", "[::1]", "a b:1", "a\x1b[2J:1", "a:\u0663"):
        with pytest.raises(UsageError, match="is not host:port"):
            split_address(text)
    with pytest.raises(UsageError, match=r"'host:70000' names no port. Ports go from 1 to 65535"):
        split_address("host:70000")
    with pytest.raises(UsageError, match="names no port") as caught:
        split_address("host:" + "9" * 5000)
    assert len(str(caught.value)) < 600
    assert store_url({"AIODIST_STORE": "etcd://a:2379"}) == "etcd://a:2379"
    assert store_url({"AIODIST_STORE": "node-1:29500"}) is None
