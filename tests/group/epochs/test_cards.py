"""A card is read, and compared with the others, before anybody acts on it; what is wrong names its rank."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from aiodist.base.errors import AuthenticationError, RendezvousError
from aiodist.group.epochs.cards import check_cards, read_cards, read_ranks

CARD: dict[str, Any] = {
    "protocol": 2,
    "byteorder": "little",
    "host": "host-a",
    "pid": 4711,
    "agreed": {"AIODIST_EAGER": "1"},
    "endpoint": {"nonce": b"n" * 16, "tcp": ["127.0.0.1", 2345], "unix": b"u", "mail": b"m", "boot": "b"},
    "uid": b"12345678",
    "hosts": False,
    "seat": ["", -1, -1],
    "backend": {"asked": "", "engines": {"cuda": "nccl"}, "told": {"cuda": b"uuid"}},
    "engine": "",
}


def card(**changes: Any) -> bytes:
    """A card with other fields."""
    changed = {**CARD, **changes}
    packed: bytes = msgpack.packb({name: value for name, value in changed.items() if value is not ...})
    return packed


def endpoint(**changes: Any) -> bytes:
    """A card whose endpoint has other fields."""
    changed = {**CARD["endpoint"], **changes}
    return card(endpoint={name: value for name, value in changed.items() if value is not ...})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb({}),
        *(card(**{name: ...}) for name in CARD),
        *(card(**{name: 5.5}) for name in CARD),
        card(host="a\nb"),
        card(host="a" * 300),
        card(byteorder="middle"),
        card(agreed={"AIODIST_EAGER": 1}),
        endpoint(nonce=...),
        endpoint(tcp=...),
        endpoint(nonce=b"short"),
        endpoint(tcp="127.0.0.1"),
        endpoint(tcp=["127.0.0.1", 1 << 16]),
        endpoint(tcp=["127.0.0.1"]),
        endpoint(unix="text"),
        endpoint(mail=b"m" * 200),
        endpoint(boot=None),
        b"\xdc\x0f\xff" * 1000,
    ],
)
def test_a_broken_card_names_its_rank(data: bytes) -> None:
    with pytest.raises(RendezvousError, match="what rank 1 says of itself cannot be read") as caught:
        read_cards([card(), data], CARD)
    assert caught.value.message.isprintable() and caught.value.hint


def test_good_cards_are_read_and_another_version_is_refused_as_such() -> None:
    far = endpoint(unix=..., mail=..., boot=...)
    assert read_cards([card(), far], CARD)[1]["endpoint"] == {"nonce": b"n" * 16, "tcp": ["127.0.0.1", 2345]}
    old = msgpack.packb({"protocol": 1, "host": "b"})  # its fields are not ours
    with pytest.raises(AuthenticationError, match="rank 1 on b speaks protocol 1"):
        check_cards(read_cards([card(), old], CARD))
    with pytest.raises(AuthenticationError, match="rank 1 on host-a speaks protocol 2"):
        check_cards(read_cards([old, card()], CARD))


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"protocol": 0}, AuthenticationError, "rank 1 on b speaks protocol 0, rank 0 on host-a 2"),
        (
            {"byteorder": "big"},
            AuthenticationError,
            "rank 1 on b is big-endian, rank 0 on host-a little-endian",
        ),
        (
            {"agreed": {"AIODIST_EAGER": "0"}},
            RendezvousError,
            "rank 1 on b has AIODIST_EAGER='0', rank 0 has '1'",
        ),
        ({"agreed": {}}, RendezvousError, "has AIODIST_EAGER=None"),
    ],
)
def test_mixed_jobs_are_refused_with_who_has_what(
    change: dict[str, Any], kind: type[Exception], words: str
) -> None:
    check_cards([CARD, {**CARD, "host": "b"}])
    with pytest.raises(kind, match=words):
        check_cards([CARD, {**CARD, "host": "b", **change}])


def test_who_is_local_is_a_list_of_ranks() -> None:
    assert read_ranks([msgpack.packb([1, 2]), msgpack.packb([])]) == [{1, 2}, set()]
    for data in (b"", msgpack.packb(5), msgpack.packb([[1]]), msgpack.packb([True]), msgpack.packb({"a": 1})):
        with pytest.raises(RendezvousError, match="rank 0"):
            read_ranks([data])
