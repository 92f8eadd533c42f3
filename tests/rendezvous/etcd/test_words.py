"""etcd's words and refusals, and where it is: without an etcd."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from aiodist.base.errors import (
    AiodistError,
    AuthenticationError,
    BackendUnavailable,
    RendezvousError,
    UsageError,
)
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.place import EtcdPlace, place
from aiodist.rendezvous.etcd.refusals import Compacted, EtcdAway, LeaseExists, NoLease, TokenOver, refusal
from tests.rendezvous.meeting import rendezvous


def test_places() -> None:
    environ = {"AIODIST_ETCD_USER": "job", "AIODIST_ETCD_PASSWORD": "hush"}
    assert place("etcd://a:1,b,[::1]:3?rank=0&world_size=1", {}) == EtcdPlace(
        (("a", 1), ("b", 2379), ("::1", 3))
    )
    assert place("etcd://a/team%20one/", {}).prefix == "team one"
    found = place("etcds://a", environ)
    assert (found.user, found.password, found.tls) == ("job", "hush", True)
    assert "hush" not in repr(found)
    assert str(place("etcd://a:1,[::1]:3", {})) == "a:1, [::1]:3"


def test_tls_files_are_etcds_own_or_the_jobs() -> None:
    job = {"AIODIST_TLS_CA": "ca", "AIODIST_TLS_CERT": "cert", "AIODIST_TLS_KEY": "key"}
    assert (place("etcd://a", job).ca, place("etcds://a", job).key) == ("", "key")
    own = place("etcds://a", {**job, "AIODIST_ETCD_CA": "other"})
    assert (own.ca, own.cert, own.key) == ("other", "", "")
    with pytest.raises(
        UsageError, match=r"TLS files for etcd \(nowhere.pem\).*No such file.*AIODIST_ETCD_CA"
    ):
        place("etcds://a", {"AIODIST_ETCD_CA": "nowhere.pem"}).ssl_context()


@pytest.mark.parametrize(
    ("url", "environ", "said"),
    [
        ("http://a", {}, "does not lead to etcd"),
        ("etcd://a:x", {}, "is not host:port"),
        ("etcd://", {}, "is not host:port"),
        ("etcd://a:0", {}, "port 0"),
        ("etcd://me:hush@a", {}, "Set AIODIST_ETCD_USER"),
        ("etcd://a", {"AIODIST_ETCD_PASSWORD": "hush"}, "AIODIST_ETCD_USER is not"),
        ("etcds://a", {"AIODIST_ETCD_CERT": "c"}, "needs its key"),
    ],
)
def test_senseless_places(url: str, environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        place(url, environ)
    assert "hush" not in str(raised.value)


async def test_without_an_http_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(BackendUnavailable, match=r'needs aiohttp.*pip install "aiodist\[etcd\]"'):
        await rendezvous("etcd://a", 0, 1, 1)


def test_the_http_client_is_loaded_where_it_is_used() -> None:
    code = "import sys, aiodist.rendezvous.etcd.store; sys.exit('aiohttp' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("url", ["etcd://me:hush@a", "etcds://me:hush@a:1?rank=0"])
async def test_a_password_in_the_address_is_not_shown(url: str) -> None:
    in_environment = {"RANK": "0", "WORLD_SIZE": "1", "AIODIST_STORE": url}
    for method, environ in ((url, {}), ("env://", in_environment)):
        with pytest.raises(UsageError, match="holds a user or a password") as raised:
            await rendezvous(method, timeout=1, environ=environ)
        assert "hush" not in str(raised.value)


async def test_a_place_is_needed() -> None:
    with pytest.raises(UsageError, match="needs rank and world_size"):
        await rendezvous("etcd://a", timeout=1)
    with pytest.raises(UsageError, match=r"'http://' does not lead to etcd\. Write etcd://"):
        await rendezvous("env://", 0, 1, 1, {"AIODIST_STORE": "http://a:1"})


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")]
)
def test_the_end_of_a_prefix(prefix: bytes, end: bytes) -> None:
    assert words.after(prefix) == end


def test_long_transactions_are_nested() -> None:
    body = words.txn([], [words.get(b"%d" % number) for number in range(150)])
    assert [len(part["request_txn"]["success"]) for part in body["success"]] == [60, 60, 30]

    def answer(parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {"header": {"revision": "7"}, "succeeded": True, "responses": parts}

    ranges = [{"response_range": {"count": str(number)}} for number in range(3)]
    found = words.outcome(answer([{"response_txn": {"responses": ranges[:2]}}, ranges[2]]))
    assert [part.count for part in found.ranges] == [0, 1, 2]
    assert (found.revision, found.succeeded) == (7, True)


def test_news_of_a_watch() -> None:
    header = {"header": {"revision": "9"}}
    kv = {"key": "aw==", "value": "dg==", "mod_revision": "5"}
    told = words.news(
        {**header, "events": [{"kv": kv}, {"type": "DELETE", "kv": {**kv, "mod_revision": "6"}}]}
    )
    assert told.changes == [(words.Item(b"k", b"v", 5), True), (words.Item(b"k", b"v", 6), False)]
    assert told.progress == 6
    assert words.news({**header, "created": True}).began
    assert words.news(header).progress == 9
    with pytest.raises(Compacted):
        words.news({**header, "canceled": True, "compact_revision": "3"})
    with pytest.raises(EtcdAway, match="no leader"):
        words.news({**header, "canceled": True, "cancel_reason": "no leader"})


def said(message: str, code: int) -> str:
    return f'{{"error":"{message}","message":"{message}","code":{code}}}'


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, said("etcdserver: request is too large", 3), UsageError, "too large for etcd .* 1 MiB"),
        (429, said("grpc: received message larger than max (9 vs. 2)", 8), UsageError, "too large for etcd"),
        (400, said("etcdserver: too many operations in txn request", 3), UsageError, "several calls"),
        (429, said("etcdserver: mvcc: database space exceeded", 8), RendezvousError, "etcd is full"),
        (401, said("etcdserver: invalid auth token", 16), TokenOver, "token"),
        (400, said("etcdserver: revision of auth store is old", 3), TokenOver, "old"),
        (403, said("etcdserver: permission denied", 7), AuthenticationError, "Grant its role"),
        (
            400,
            said("etcdserver: authentication failed, invalid user ID or password", 3),
            AuthenticationError,
            "refused",
        ),
        (400, said("etcdserver: user name is empty", 3), AuthenticationError, "wants a user"),
        (404, said("etcdserver: requested lease not found", 5), NoLease, "lease"),
        (412, said("etcdserver: lease already exists", 9), LeaseExists, "exists"),
        (503, said("etcdserver: no leader", 14), EtcdAway, "no leader"),
        (504, said("etcdserver: request timed out", 4), EtcdAway, "timed out"),
        (429, said("etcdserver: too many requests", 8), EtcdAway, "too many requests"),
        (
            200,
            '{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}',
            EtcdAway,
            "no leader",
        ),
        (400, said("etcdserver: something new", 3), RendezvousError, "something new"),
        (400, "Client sent an HTTP request to an HTTPS server.", RendezvousError, "etcds://"),
        (404, "Not Found", RendezvousError, "not etcd's JSON gateway"),
        (502, "<html>", EtcdAway, "HTTP status 502"),
        (200, "[1]", EtcdAway, "HTTP status 200"),
    ],
)
def test_refusals(status: int, body: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as raised:
        raise refusal(status, body)
    assert type(raised.value) is kind
    assert not isinstance(raised.value, AiodistError) or "\n" not in str(raised.value)
