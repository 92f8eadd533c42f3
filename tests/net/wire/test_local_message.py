"""Letters: read by the one process that they were written to, or by none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import AuthenticationError, WireError
from aiodist.net.wire import local_message as module
from aiodist.net.wire.handshake import NONCE_BYTES
from aiodist.net.wire.local_message import MESSAGE_BYTES, LocalMessage, seal, unseal

MINE, THEIRS = bytes(range(NONCE_BYTES)), bytes(range(1, NONCE_BYTES + 1))
HELLO = LocalMessage(3, THEIRS, 1 << 36, bytes(32))

messages = st.builds(
    LocalMessage,
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES),
    st.integers(0, (1 << 64) - 1),
    st.binary(min_size=32, max_size=32),
    st.booleans(),
)


@given(messages, st.binary(max_size=80), st.text(max_size=30), st.integers(0, 1 << 20), st.binary())
def test_what_was_sealed_is_read(
    message: LocalMessage, secret: bytes, job: str, receiver: int, said: bytes
) -> None:
    data = seal(message, secret, job, receiver, MINE, said)
    assert len(data) == MESSAGE_BYTES
    assert unseal(data, secret, job, receiver, MINE, said) == message
    with pytest.raises(AuthenticationError):
        unseal(data, secret, job, receiver, MINE, said + b"more")


@pytest.mark.parametrize(
    ("secret", "job", "receiver", "nonce", "said"),
    [
        (b"other", "job", 1, MINE, b"before"),
        (b"", "job", 1, MINE, b"before"),
        (b"secret", "other", 1, MINE, b"before"),
        (b"secret", "job", 3, MINE, b"before"),
        (b"secret", "job", 1, THEIRS, b"before"),
        (b"secret", "job", 1, MINE, b"behind"),
        (b"secret", "job", 1, MINE, b""),
        (b"secret", "jobbefore", 1, MINE, b""),
    ],
)
def test_it_is_worth_nothing_to_another(
    secret: bytes, job: str, receiver: int, nonce: bytes, said: bytes
) -> None:
    data = seal(HELLO, b"secret", "job", 1, MINE, b"before")
    with pytest.raises(AuthenticationError):
        unseal(data, secret, job, receiver, nonce, said)


@given(st.integers(0, MESSAGE_BYTES * 8 - 1))
def test_any_bit_counts(bit: int) -> None:
    data = bytearray(seal(HELLO, b"secret", "job", 1, MINE))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises((AuthenticationError, WireError)):
        unseal(bytes(data), b"secret", "job", 1, MINE)


@given(st.binary(max_size=2 * MESSAGE_BYTES))
def test_noise(data: bytes) -> None:
    with pytest.raises((AuthenticationError, WireError)):
        unseal(data, b"", "job", 1, MINE)


def test_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROTOCOL_VERSION", 99)
    data = seal(HELLO, b"secret", "job", 1, MINE)
    monkeypatch.undo()
    with pytest.raises(AuthenticationError, match="protocol 99"):
        unseal(data, b"secret", "job", 1, MINE)
