"""AIODIST_TLS_*: all or none, and files that are what they should be."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aiodist.base.environment import files, tls, tuning
from aiodist.base.environment.tls import NAMES, read_ca, tls_files
from aiodist.base.errors import UsageError
from aiodist.rendezvous.etcd.place import EtcdPlace
from tests.conftest import HandOver

Certificates = Callable[[str], dict[str, str]]


def test_none_is_none() -> None:
    assert tls({}) is None
    assert tls(dict.fromkeys(NAMES, "")) is None
    assert tuning({}).agreed["AIODIST_TLS"] == "0"


@pytest.mark.parametrize("left_out", NAMES)
def test_all_or_none(left_out: str) -> None:
    environ = {name: "/f" for name in NAMES if name != left_out}
    for read in (tls, tls_files, tuning):
        with pytest.raises(UsageError, match=f"^{left_out} not set, though") as caught:
            read(environ)
        assert "\n" not in str(caught.value)


def test_what_the_recipe_makes(certificates: Certificates) -> None:
    environ = certificates("ours")
    found = tls(environ)
    assert found is not None and tuning(environ).agreed["AIODIST_TLS"] == "1"
    for context in (found.server, found.client):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED
    said = subprocess.run(
        ["openssl", "x509", "-in", environ["AIODIST_TLS_CERT"], "-noout", "-fingerprint", "-sha256"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert hashlib.sha256(found.certificate).hexdigest().upper() == said.split("=")[1].strip().replace(
        ":", ""
    )


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("AIODIST_TLS_CERT", None, "AIODIST_TLS_CERT=.* cannot be read"),
        ("AIODIST_TLS_CERT", "junk", "AIODIST_TLS_CERT=.* cannot be used"),
        ("AIODIST_TLS_KEY", "junk", "AIODIST_TLS_KEY=.* cannot be used"),
        ("AIODIST_TLS_CA", "junk", "AIODIST_TLS_CA=.* holds no certificate"),
    ],
)
def test_files_that_are_something_else(
    name: str, content: str | None, problem: str, certificates: Certificates, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    with pytest.raises(UsageError, match=problem) as caught:
        tls(certificates("ours") | {name: str(path)})
    assert "\n" not in str(caught.value)


def test_keys(certificates: Certificates, tmp_path: Path) -> None:
    ours, theirs = certificates("ours"), certificates("theirs")
    with pytest.raises(UsageError, match="is not the key of"):
        tls(ours | {"AIODIST_TLS_KEY": theirs["AIODIST_TLS_KEY"]})
    key = tmp_path / "key"
    shutil.copy(ours["AIODIST_TLS_KEY"], key)
    key.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by other users"):
        tls(ours | {"AIODIST_TLS_KEY": str(key)})
    subprocess.run(
        ["openssl", "ec", "-in", ours["AIODIST_TLS_KEY"], "-aes256", "-passout", "pass:x", "-out", str(key)],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    with pytest.raises(UsageError, match="without a password"):
        tls(ours | {"AIODIST_TLS_KEY": str(key)})


def test_files_that_others_may_have_written(
    certificates: Certificates, tmp_path: Path, hand_over: HandOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_is_private_group", lambda group: False)
    ours = certificates("ours")
    for name in ("AIODIST_TLS_KEY", "AIODIST_TLS_CA"):
        copied = tmp_path / name
        shutil.copy(ours[name], copied)
        copied.chmod(0o620)
        with pytest.raises(UsageError, match=f"{name}=.* can be written by others"):
            tls(ours | {name: str(copied)})
        copied.chmod(0o600)
        assert tls(ours | {name: str(copied)}) is not None
        os.mkfifo(tmp_path / "pipe", 0o600)
        with pytest.raises(UsageError, match=f"{name}=.* is not a file"):
            tls(ours | {name: str(tmp_path / "pipe")})
        (tmp_path / "pipe").unlink()
    hand_over(tmp_path / "AIODIST_TLS_KEY")
    with pytest.raises(UsageError, match=r"AIODIST_TLS_KEY=.* belongs to another user"):
        tls({**ours, "AIODIST_TLS_KEY": str(tmp_path / "AIODIST_TLS_KEY")})


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which needs root")
def test_a_link_that_another_user_has_made(
    certificates: Certificates, tmp_path: Path, hand_over: HandOver
) -> None:
    ours = certificates("ours")
    (tmp_path / "link").symlink_to(ours["AIODIST_TLS_CA"])
    assert tls(ours | {"AIODIST_TLS_CA": str(tmp_path / "link")}) is not None
    hand_over(tmp_path / "link")
    with pytest.raises(UsageError, match="link"):
        tls(ours | {"AIODIST_TLS_CA": str(tmp_path / "link")})


def test_a_ca_that_another_user_has_written_lets_in_nobody(
    certificates: Certificates, tmp_path: Path, hand_over: HandOver
) -> None:
    """The owner may change it, be its mode what it may."""
    path = tmp_path / "ca.pem"
    shutil.copy(certificates("ours")["AIODIST_TLS_CA"], path)
    path.chmod(0o644)
    assert "BEGIN CERTIFICATE" in read_ca("the CA", str(path))
    etcd = EtcdPlace((("h", 1),), tls=True, ca=str(path))
    context = etcd.ssl_context()
    assert context is not None and len(context.get_ca_certs()) == 1
    hand_over(path)
    with pytest.raises(UsageError, match=r"^the CA belongs to another user"):
        read_ca("the CA", str(path))
    with pytest.raises(UsageError, match=r"^the CA for etcd, .* belongs to another user"):
        etcd.ssl_context()


def test_a_ca_s_file_may_hold_words_and_several(certificates: Certificates, tmp_path: Path) -> None:
    ours, theirs = certificates("ours"), certificates("theirs")
    both = b"".join(Path(one["AIODIST_TLS_CA"]).read_bytes() for one in (ours, theirs))
    (tmp_path / "ca.pem").write_bytes("Zertifikate für uns:\n".encode() + both)
    found = tls(ours | {"AIODIST_TLS_CA": str(tmp_path / "ca.pem")})
    assert found is not None
    assert [len(context.get_ca_certs()) for context in (found.server, found.client)] == [2, 2]
