"""What a job tells etcd, and who may read it: the key of its certificate, and the password of its user."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

import pytest

from aiodist.base.errors import RendezvousTimeout, UsageError
from aiodist.rendezvous.etcd.place import EtcdPlace, place
from aiodist.rendezvous.etcd.store import EtcdStore

USER = {"AIODIST_ETCD_USER": "me", "AIODIST_ETCD_PASSWORD": "sesame"}


def test_a_key_that_everybody_may_read_is_none(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    for mode in (0o644, 0o604):
        key.chmod(mode)
        with pytest.raises(
            UsageError, match=f"the key for etcd, {key}, can be read by other users. chmod 600 "
        ):
            EtcdPlace((("h", 1),), tls=True, cert="cert.pem", key=str(key)).ssl_context()


@pytest.mark.parametrize(
    ("url", "tells"),
    [
        ("etcd://10.0.0.1:1", True),
        ("etcd://127.0.0.1:1,10.0.0.1:1", True),
        ("etcd://127.0.0.1:1,[::1]:1,localhost:1", False),
        ("etcds://10.0.0.1:1", False),
    ],
)
def test_who_learns_the_password(url: str, tells: bool) -> None:
    assert place(url, USER).tells_password is tells
    assert not place(url, {}).tells_password


@pytest.mark.skipif(find_spec("aiohttp") is None, reason="aiohttp is not installed")
@pytest.mark.parametrize("rank", ["0", "1"])
async def test_the_first_rank_says_so(
    rank: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodist.rendezvous.etcd.place.is_loopback", lambda host: False)
    caplog.set_level(logging.WARNING)
    with pytest.raises(RendezvousTimeout):
        await EtcdStore.connect("etcd://127.0.0.1:1", "job", 0.05, environ={**USER, "RANK": rank})
    assert ("AIODIST_ETCD_PASSWORD goes to etcd at 127.0.0.1:1 in clear" in caplog.text) is (rank == "0")
    assert "sesame" not in caplog.text
