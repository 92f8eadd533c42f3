"""The handshake: who gets in, and what each side is told when not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.errors import AuthenticationError, UsageError, WireError
from aiodist.wire import handshake
from aiodist.wire.handshake import Handshake, Identity, Purpose

A, B = b"a" * 16, b"b" * 16


def client(
    job: str = "job", purpose: Purpose = Purpose.data, rank: int = 1, secret: bytes = b"s"
) -> Handshake:
    return Handshake.client(Identity(job, purpose, rank, b"client card"), secret, A)


def server(
    job: str = "job", purpose: Purpose = Purpose.data, rank: int = 0, secret: bytes = b"s"
) -> Handshake:
    return Handshake.server(Identity(job, purpose, rank, b"server card"), secret, B)


def exchange(one: Handshake, two: Handshake) -> list[Exception]:
    """Carry bytes both ways until nobody has any left; the errors in order of their occurrence."""
    errors: list[Exception] = []
    moved = True
    while moved:
        moved = False
        for source, target in ((one, two), (two, one)):
            if data := source.data_to_send():
                moved = True
                try:
                    target.receive(data)
                except (AuthenticationError, WireError) as error:
                    errors.append(error)
    return errors


@pytest.mark.parametrize("secret", [b"", b"s" * 32])
def test_both_learn_who_the_other_is(secret: bytes) -> None:
    one, two = client(secret=secret), server(secret=secret)
    assert exchange(one, two) == []
    assert one.done and two.done
    assert one.peer == Identity("job", Purpose.data, 0, b"server card")
    assert two.peer == Identity("job", Purpose.data, 1, b"client card")


@given(st.lists(st.integers(1, 40), max_size=60), st.binary(max_size=50))
def test_any_split_of_the_bytes_gives_the_same(cuts: list[int], behind: bytes) -> None:
    one, two = client(), server()
    sizes = iter(cuts)

    def feed(target: Handshake, data: bytes) -> None:
        while data:
            size = next(sizes, len(data))
            target.receive(data[:size])
            data = data[size:]

    feed(two, one.data_to_send())
    feed(one, two.data_to_send())
    assert (one.done, two.done) == (True, False)
    feed(two, one.data_to_send() + behind)
    assert two.done
    assert two.leftover == behind


def test_the_client_may_send_right_behind_its_proof() -> None:
    one, two = client(), server()
    two.receive(one.data_to_send())
    one.receive(two.data_to_send() + b"the server was quick")
    assert one.done and one.leftover == b"the server was quick"
    two.receive(one.data_to_send() + b"so was ")
    two.receive(b"the client")
    assert two.leftover == b"so was the client"


def test_a_data_listener_accepts_control_links() -> None:
    one, two = client(purpose=Purpose.control), server(purpose=Purpose.data)
    assert exchange(one, two) == []
    assert two.peer is not None and two.peer.purpose is Purpose.control


@pytest.mark.parametrize(
    ("one", "two", "at_server", "at_client"),
    [
        (
            client(job="x"),
            server(job="y"),
            "rank 1 belongs to job 'x', this process to 'y'",
            "rank 0 belongs to job 'y', this process to 'x'",
        ),
        (
            client(purpose=Purpose.data, rank=-1),
            server(purpose=Purpose.store, rank=-1),
            "a client of the store wants a data connection, this is for store",
            "this process wants a data connection, the store is for store",
        ),
        (
            client(secret=b"one"),
            server(secret=b"two"),
            "rank 1 has another secret than this process",
            "rank 0 has another secret than this process",
        ),
        (
            client(secret=b"", purpose=Purpose.store),
            server(secret=b"two", purpose=Purpose.store, rank=-1),
            "rank 1 has another secret than this process",
            "the store has another secret than this process",
        ),
    ],
    ids=["job", "purpose", "secret", "no secret"],
)
def test_a_stranger_is_refused_and_both_hear_why(
    one: Handshake, two: Handshake, at_server: str, at_client: str
) -> None:
    errors = exchange(one, two)
    assert all(isinstance(error, AuthenticationError) for error in errors)
    messages = {error.message for error in errors if isinstance(error, AuthenticationError)}
    assert messages == {at_server, at_client}
    assert all("\n" not in str(error) for error in errors)
    assert not one.done and not two.done


def test_the_proofs_are_bound_to_the_certificates() -> None:
    one, two = client(), server()
    one.bind(b"certificates")
    two.bind(b"certificates")
    assert exchange(one, two) == [] and one.done and two.done
    for other in (b"", b"others"):
        one, two = client(), server()
        one.bind(b"certificates")
        two.bind(other)
        [at_client, at_server] = exchange(one, two)
        assert "another secret" in str(at_client) and "another secret" in str(at_server)
        assert not one.done and not two.done


def test_tls_on_one_side_only_is_said_on_both() -> None:
    two = server()
    with pytest.raises(
        AuthenticationError, match=r"^the client uses TLS, this process does not\. Set AIODIST_TLS"
    ):
        two.receive(b"\x16\x03\x01")
    answer = two.data_to_send()
    refused = handshake.refused_plain(answer, is_server=False)
    assert refused is not None and refused.message == "the server does not use TLS, this process does"
    one = client()
    refused = handshake.refused_plain(one.data_to_send(), is_server=True)
    assert refused is not None and refused.message == "the client does not use TLS, this process does"
    with pytest.raises(
        AuthenticationError, match=r"^this process does not use TLS, the server does\. Set AIODIST"
    ):
        one.receive(handshake.refuse_plain())
    assert handshake.refused_plain(b"\x16\x03\x03", is_server=True) is None


def test_mixed_versions_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = client(), server()
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 2)
    one = client()
    hello = one.data_to_send()
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 1)
    said = "rank 1 speaks protocol 2, this process 1. Install the same aiodist on every host"
    with pytest.raises(AuthenticationError, match=f"^{re.escape(said)}$"):
        two.receive(hello)
    with pytest.raises(AuthenticationError, match=r"^rank 0 speaks protocol 1, this process 2\. Install"):
        one.receive(two.data_to_send())


def test_a_newer_version_may_have_more_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 9)
    hello = handshake._message(
        handshake._Kind.hello, handshake._pack_hello(Identity("j", Purpose.data, 5), A) + b"more"
    )
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 1)
    with pytest.raises(AuthenticationError, match="rank 5 speaks protocol 9, this process 1"):
        server().receive(hello)


def test_the_other_byte_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    two = server()
    monkeypatch.setattr(handshake, "_ORDER_MARKER", handshake._ORDER_MARKER[::-1])
    hello = client().data_to_send()
    monkeypatch.undo()
    with pytest.raises(AuthenticationError, match="rank 1 has the other byte order"):
        two.receive(hello)


def test_reflection_does_not_work() -> None:
    one = client()
    hello = one.data_to_send()
    with pytest.raises(WireError, match="out of turn"):
        one.receive(hello)

    # The own hello dressed up as a welcome.
    one = client()
    body = one.data_to_send()[handshake._PREFIX.size :]
    with pytest.raises(WireError, match="its own words back"):
        one.receive(handshake._message(handshake._Kind.welcome, body))

    # A server's proof sent back to it as the client's.
    two = server()
    two.receive(client().data_to_send())
    answer = two.data_to_send()
    with pytest.raises(AuthenticationError, match="another secret"):
        two.receive(answer[-(handshake._PREFIX.size + 32) :])


def test_a_replayed_client_does_not_get_in() -> None:
    one, two = client(), server()
    hello = one.data_to_send()
    two.receive(hello)
    one.receive(two.data_to_send())
    proof = one.data_to_send()
    later = Handshake.server(Identity("job", Purpose.data, 0, b"server card"), b"s", b"c" * 16)
    later.receive(hello)
    with pytest.raises(AuthenticationError, match="another secret"):
        later.receive(proof)
    assert not later.done


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_flipped_bit_never_gets_in(position: int, mask: int) -> None:
    one, two = client(), server()
    two.receive(one.data_to_send())
    answer = bytearray(two.data_to_send())
    answer[position % len(answer)] ^= mask
    try:
        one.receive(answer)
    except (AuthenticationError, WireError):
        pass
    assert not one.done


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n", b"\x00", b"AIODISX"])
def test_a_stranger_is_recognised_by_its_first_byte(junk: bytes) -> None:
    two = server()
    with pytest.raises(WireError, match="does not speak aiodist"):
        two.receive(junk)
    assert two.data_to_send() == b""


def test_no_message_is_larger_than_allowed() -> None:
    with pytest.raises(WireError, match="at most 2048"):
        server().receive(handshake._PREFIX.pack(b"AIODIST", 1, 1, 5000))


@given(st.binary(max_size=300))
def test_no_hello_body_does_more_than_fail(body: bytes) -> None:
    with pytest.raises((WireError, AuthenticationError)):
        server().receive(handshake._message(handshake._Kind.hello, body))


def test_a_refusal_is_shown_as_one_printable_line() -> None:
    nasty = handshake._message(handshake._Kind.refused, b"\x1b[31mred\rline\nhint\nmore" + b"x" * 1000)
    with pytest.raises(AuthenticationError) as caught:
        client().receive(nasty)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 900


def test_an_identity_is_bounded() -> None:
    with pytest.raises(UsageError):
        Identity("j" * 256, Purpose.store)
    with pytest.raises(UsageError):
        Identity("j", Purpose.store, card=b"x" * 1025)
    with pytest.raises(UsageError, match="16 bytes"):
        Handshake.client(Identity("j", Purpose.store), b"", b"short")
