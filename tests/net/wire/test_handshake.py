"""The handshake: who gets in, and what each side is told when not."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import AuthenticationError, UsageError, WireError
from aiodist.net.wire import handshake
from aiodist.net.wire.handshake import Handshake, Identity, Purpose

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
    assert (one.done, two.done) == (False, False)
    feed(two, one.data_to_send())
    assert (one.done, two.done) == (False, True)
    feed(one, two.data_to_send() + behind)
    assert one.done
    assert one.leftover == behind


def test_the_server_may_send_right_behind_its_welcome() -> None:
    one, two = client(), server()
    two.receive(one.data_to_send())
    one.receive(two.data_to_send())
    two.receive(one.data_to_send())
    one.receive(two.data_to_send() + b"the server ")
    assert one.done
    one.receive(b"was quick")
    assert one.leftover == b"the server was quick"
    two.receive(b"so was the client")
    assert two.leftover == b"so was the client"


def test_both_have_the_same_keys_one_for_each_direction() -> None:
    made = set()
    for nonce, secret, binding in ((B, b"s", b""), (b"c" * 16, b"s", b""), (B, b"t", b""), (B, b"s", b"tls")):
        one = client(secret=secret)
        two = Handshake.server(Identity("job", Purpose.data, 0, b"server card"), secret, nonce)
        one.bind(binding)
        two.bind(binding)
        assert one.keys == two.keys == (b"", b"")  # not before it is done
        assert exchange(one, two) == []
        assert one.keys == two.keys[::-1]
        made |= {*one.keys}
        assert all(len(key) == 32 for key in one.keys)
    assert len(made) == 8  # and none is another's
    one, two = client(secret=b""), server(secret=b"")
    assert exchange(one, two) == []
    assert one.keys == two.keys == (b"", b"")


def test_whom_the_client_looks_for() -> None:
    for to, right in ((b"server card", True), (b"", True), (b"another card", False)):
        one = Handshake.client(Identity("job", Purpose.data, 1, b"client card"), b"s", A, to)
        two = server()
        errors = exchange(one, two)
        assert (one.done, two.done) == (right, right)
        if not right:
            [at_server, at_client] = map(str, errors)
            assert "rank 1 looks for another process at this address" in at_server
            assert 'the peer says: "another process has taken that address"' in at_client


def test_a_server_says_nothing_of_itself_before_the_proof() -> None:
    """But a nonce, and what is the same for all."""
    two = server(job="name", secret=b"hunter2")
    two.receive(client(job="name", secret=b"guess").data_to_send())
    challenge = two.data_to_send()
    assert challenge == handshake.pack_message(handshake.MessageKind.challenge, B)
    with pytest.raises(AuthenticationError, match="another secret"):
        two.receive(handshake.pack_message(handshake.MessageKind.proof, bytes(32)))
    refusal = two.data_to_send()
    assert b"another secret" in refusal and b"name" not in refusal and b"card" not in refusal


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
def test_an_unauthenticated_peer_is_refused_and_both_are_told_why(
    one: Handshake, two: Handshake, at_server: str, at_client: str
) -> None:
    errors = exchange(one, two)
    assert all(isinstance(error, AuthenticationError) for error in errors)
    messages = {error.message for error in errors if isinstance(error, AuthenticationError)}
    assert messages <= {
        text for said in (at_server, at_client) for text in (said, f'the peer says: "{said}"')
    }
    assert any(at_server in message for message in messages)
    assert any(at_client in message for message in messages)
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
        [at_server, at_client] = exchange(one, two)
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
        AuthenticationError,
        match=r'^the peer says: "this process does not use TLS, the server does"\. Set AIODIST',
    ):
        one.receive(handshake.refuse_plain())
    assert handshake.refused_plain(b"\x16\x03\x03", is_server=True) is None


def test_mixed_versions_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = client(), server()
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 3)
    one = client()
    hello = one.data_to_send()
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 2)
    said = "rank 1 speaks protocol 3, this process 2. Install the same aiodist on every host"
    with pytest.raises(AuthenticationError, match=f"^{re.escape(said)}$"):
        two.receive(hello)
    with pytest.raises(
        AuthenticationError, match=r'^the peer says: "rank 0 speaks protocol 2, this process 3"\. Install'
    ):
        one.receive(two.data_to_send())


def test_a_newer_version_may_have_more_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 9)
    hello = handshake.pack_message(
        handshake.MessageKind.hello, handshake._pack_hello(Identity("j", Purpose.data, 5), A) + b"more"
    )
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 2)
    with pytest.raises(AuthenticationError, match="rank 5 speaks protocol 9, this process 2"):
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

    # The own nonce as a challenge: what it would prove, an impostor could use.
    one = client()
    one.data_to_send()
    with pytest.raises(WireError, match="its own messages back"):
        one.receive(handshake.pack_message(handshake.MessageKind.challenge, A))
    assert one.data_to_send() == b""

    # The client's proof sent back to it as the server's.
    one, two = client(), server()
    two.receive(one.data_to_send())
    one.receive(two.data_to_send())
    proof = one.data_to_send()[handshake.PREFIX.size :]
    with pytest.raises(AuthenticationError, match="another secret"):
        one.receive(handshake.pack_message(handshake.MessageKind.welcome, proof + struct.pack("<iH", 0, 0)))


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


@given(st.integers(0, 2), st.integers(0, 200), st.integers(1, 255))
def test_a_flipped_bit_never_gets_in(message: int, position: int, mask: int) -> None:
    """In the hello or the challenge: then the server is never done; in the welcome: nor is the client."""
    one, two = client(), server()

    def carried(data: bytes, turn: int) -> bytes:
        flipped = bytearray(data)
        if turn == message:
            flipped[position % len(flipped)] ^= mask
        return bytes(flipped)

    try:
        two.receive(carried(one.data_to_send(), 0))
        one.receive(carried(two.data_to_send(), 1))
        two.receive(one.data_to_send())
        one.receive(carried(two.data_to_send(), 2))
    except (AuthenticationError, WireError):
        pass
    assert not one.done
    assert two.done == (message == 2)


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n", b"\x00", b"AIODISX"])
def test_another_protocol_is_recognised_by_its_first_byte(junk: bytes) -> None:
    two = server()
    with pytest.raises(WireError, match="does not speak aiodist"):
        two.receive(junk)
    assert two.data_to_send() == b""


def test_torch_that_looks_for_its_own_store_is_told_apart() -> None:
    """A store on MASTER_PORT, where torch's rank 0 wanted to listen: the line says both ways out."""
    two = server()
    with pytest.raises(
        WireError, match=r"client is torch\.distributed.*before aiodist, or set AIODIST_SHARE_PORT=1"
    ):
        two.receive(handshake.TORCH_OPENS + b"\x0d\0\0\0\0")
    assert two.data_to_send() == b""


def test_no_message_is_larger_than_allowed() -> None:
    with pytest.raises(WireError, match="at most 2048"):
        server().receive(handshake.PREFIX.pack(b"AIODIST", 1, 2, 5000))


@given(st.binary(max_size=300))
def test_no_hello_body_does_more_than_fail(body: bytes) -> None:
    with pytest.raises((WireError, AuthenticationError)):
        server().receive(handshake.pack_message(handshake.MessageKind.hello, body))


def test_a_refusal_is_shown_as_one_printable_line() -> None:
    nasty = handshake.pack_message(
        handshake.MessageKind.refused, b"\x1b[31mred\rline\nhint\nmore" + b"x" * 1000
    )
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
