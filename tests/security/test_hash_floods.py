"""A member that sends keys of one hash value: a table of them takes the square of their number to fill.

Text and bytes are hashed with a key that each process draws. Numbers are not, nor tuples of them: who sends
them chooses where they fall. 224 KB took 11 s, with every thread of the receiver held.
"""

from __future__ import annotations

import random
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgpack
import pytest

from aiodist.base.errors import RendezvousError, WireError
from aiodist.group.epochs.cards import read_cards
from aiodist.net.wire import objects
from aiodist.net.wire.objects import MAX_ALIKE, decode, encode
from tests.levels import few

_PRIME = (1 << 61) - 1  # Python's hashes of numbers are remainders of it
_WORD = (1 << 64) - 1
_P1, _P2, _P5 = (
    11400714785074694791,
    14029467366897019727,
    2870177450012600261,
)  # of Python's hashes of tuples


def integers(count: int) -> list[int]:
    return [_PRIME * (1000 + n) for n in range(count)]


def tuples(count: int) -> list[tuple[int, int]]:
    """Pairs of one hash value: for each first number the second that leads there."""
    found: list[tuple[int, int]] = []
    inverse = pow(_P2, -1, 1 << 64)
    first = 0
    while len(found) < count:
        first += 1
        lane = (_P5 + first * _P2) & _WORD
        lane = ((lane << 31 | lane >> 33) & _WORD) * _P1 & _WORD
        second = (0x1234567890ABCDEF - lane) * inverse & _WORD
        if second < _PRIME:
            found.append((first, second))
    return found


def table(code: objects._Ext | None, keys: list[Any]) -> bytes:
    """The encoding of a set, or of a dict (None), without one: the sender need not make it."""
    encoder = objects._Encoder(False, None)
    if code is None:
        encoder.packer.pack_map_header(len(keys))
        for key in keys:
            encoder.value(key, 0)
            encoder.packer.pack(None)
    else:
        encoder.packer.pack_array_header(1 + len(keys))
        encoder.leaf(code, b"")
        encoder.items(keys, 0)
    structure: bytes = encoder.packer.bytes()
    return objects._HEAD.pack(objects.FORMAT, len(structure)) + structure


@pytest.mark.parametrize("keys", [integers(1000), tuples(1000), integers(500) + list(range(1000))])
@pytest.mark.parametrize("code", [None, objects._Ext.set, objects._Ext.frozenset])
def test_keys_of_one_hash_value_are_refused(code: objects._Ext | None, keys: list[Any]) -> None:
    assert len({hash(key) for key in keys}) <= len(keys) - 499
    with pytest.raises(WireError, match="share their hash values"):
        decode(table(code, keys))


def test_also_inside_of_other_containers() -> None:
    inner = table(None, integers(1000))[objects._HEAD.size :]
    structure = msgpack.packb([1, {"a": 2}])[:-1] + inner
    with pytest.raises(WireError, match="share their hash values"):
        decode(objects._HEAD.pack(objects.FORMAT, len(structure)) + structure)


HONEST: dict[str, Callable[[], Iterable[Any]]] = {  # called by who tests them: whoever collects makes none
    "text": lambda: [f"key {n}" for n in range(50_000)],
    "ints": lambda: range(-25_000, 25_000),
    "floats": lambda: [random.Random(1).random() + n for n in range(50_000)],
    "tuples": lambda: [(n, -n, f"{n}") for n in range(10_000)],
    "sets": lambda: [frozenset({n, n + 1}) for n in range(5_000)],
    "low bits": lambda: [n << 20 for n in range(50_000)],  # equal ones are told apart by the others
    "more low bits": lambda: [n << 44 for n in range(50_000)],
    "masks": lambda: [1 << n for n in range(5_000)],  # 61 hash values
    "powers": lambda: [2.0**n for n in range(-1_000, 1_000)],
    "few alike": lambda: integers(MAX_ALIKE),
}


@pytest.mark.parametrize("kind", few(HONEST, ["text", "tuples", "masks", "powers", "few alike"]))
def test_honest_keys_travel(kind: str) -> None:
    keys = HONEST[kind]()
    for container in (dict.fromkeys(keys, 1), set(keys), frozenset(keys), OrderedDict.fromkeys(keys, 1)):
        back = decode(encode(container))
        assert type(back) is type(container)
        assert back == container


def test_a_time_stamp_of_msgpack_is_a_number_at_most() -> None:
    """Its hash is that of a tuple."""
    structure = b"\xdf" + struct.pack(">I", 1) + b"\xc7\x0c\xff" + struct.pack(">Iq", 5, 7) + b"\xc0"
    back = decode(objects._HEAD.pack(objects.FORMAT, len(structure)) + structure)
    assert [type(key) for key in back] == [float]


@pytest.mark.parametrize("key", [b"\x05", b"\xc7\x0c\xff" + struct.pack(">Iq", 5, 7)])
def test_the_keys_of_a_card_are_text(key: bytes) -> None:
    with pytest.raises(RendezvousError, match=r"what rank 0 says of itself cannot be read \(.*map key"):
        read_cards([b"\x81" + key + b"\xc0"], {})
