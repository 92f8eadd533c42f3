"""A socket with TLS on it behaves like one without, for who reads and writes it without waiting."""

from __future__ import annotations

import random
import select
import socket
from collections.abc import Iterator

import pytest

from aiodist.base.environment import Tls
from aiodist.base.errors import AuthenticationError, WireError
from aiodist.net import secure
from aiodist.net.secure import SecureSocket


@pytest.fixture
def wires() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection whose buffers are small."""
    with socket.socket() as listener, socket.socket() as one:
        listener.bind(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        listener.listen()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        one.connect(listener.getsockname())
        two, _ = listener.accept()
        with two:
            one.setblocking(False)
            two.setblocking(False)
            yield one, two


def arrived(sock: SecureSocket | socket.socket) -> None:
    """Until something can be read from a socket."""
    select.select([sock], [], [], 10)


def shake(client: SecureSocket, server: SecureSocket) -> None:
    done = [False, False]
    while not all(done):
        for place, side in enumerate((client, server)):
            if not done[place]:
                done[place] = side.shake_hands()


def connect(wires: tuple[socket.socket, socket.socket], tls: Tls) -> tuple[SecureSocket, SecureSocket]:
    client = SecureSocket(wires[0], tls, is_server=False)
    server = SecureSocket(wires[1], tls, is_server=True)
    shake(client, server)
    return client, server


def test_both_ends_know_both_certificates(wires: tuple[socket.socket, socket.socket], ours: Tls) -> None:
    client, server = connect(wires, ours)
    assert client.binding == server.binding and len(client.binding) == 64
    assert client.family == socket.AF_INET and client.fileno() == wires[0].fileno()
    assert client.getpeername() == server.getsockname()


def test_any_pattern_of_writes_and_reads_moves_the_same_bytes(
    wires: tuple[socket.socket, socket.socket], ours: Tls
) -> None:
    """Buffers are small, so writes stop anywhere, and what was refused is offered again."""
    client, server = connect(wires, ours)
    chance = random.Random(1)
    whole = chance.randbytes(3 << 20)
    at, got = 0, bytearray()
    offered: list[memoryview] = []
    stops = 0
    while len(got) < len(whole):
        if not offered and at < len(whole):
            size = chance.choice([1, 72, 5000, 70_000, 600_000])
            header, body = whole[at : at + 72], whole[at + 72 : at + 72 + size]
            offered = [memoryview(part) for part in (header, body) if part]
        if offered:
            try:
                sent = client.sendmsg(offered) if chance.random() < 0.8 else client.send(offered[0])
            except BlockingIOError:
                stops += 1
            else:
                at += sent
                while sent:
                    taken = min(sent, len(offered[0]))
                    sent -= taken
                    offered[0] = offered[0][taken:]
                    if not offered[0]:
                        offered.pop(0)
        how = chance.randrange(4)
        try:
            if how == 0:
                got += server.recv(chance.choice([1, 4096, 65536]))
                assert not server.pending()  # or a loop would not know that there is more
            elif how == 1:
                place = bytearray(chance.choice([1, 100, 20_000, 100_000]))
                got += place[: server.recv_into(place)]
            elif how == 2:
                places = [bytearray(chance.choice([10, 30_000])), bytearray(2048)]
                (count,) = server.recvmsg_into([memoryview(place) for place in places])
                got += b"".join(places)[:count]
        except BlockingIOError:
            assert not server.pending()
    assert got == whole
    assert stops > 10


def test_what_is_pending_is_said(wires: tuple[socket.socket, socket.socket], ours: Tls) -> None:
    client, server = connect(wires, ours)
    client.send(b"x" * 3000)
    small = bytearray(10)
    arrived(server)
    assert server.recv_into(small) == 10
    assert server.pending()
    assert len(server.recv(1)) == 2990
    assert not server.pending()


def test_the_end_is_read_as_an_end(wires: tuple[socket.socket, socket.socket], ours: Tls) -> None:
    client, server = connect(wires, ours)
    client.send(b"the last")
    client.close()
    arrived(server)
    assert server.recv(100) == b"the last"
    arrived(server)
    assert server.recv(100) == b""
    assert server.recv_into(bytearray(5)) == 0


def test_bytes_that_were_changed_on_the_way_end_it(
    wires: tuple[socket.socket, socket.socket], ours: Tls
) -> None:
    client, server = connect(wires, ours)
    server.send(b"hello")
    arrived(client)
    assert client.recv(100) == b"hello"
    client.send(b"before")
    wires[0].send(b"\x17\x03\x03\x00\x20" + bytes(32))
    arrived(server)
    assert server.recv(100) == b"before"
    arrived(server)
    for _ in range(2):
        with pytest.raises(ConnectionError, match="TLS failed"):
            server.recv(100)
    arrived(client)
    with pytest.raises(ConnectionError, match="bad record mac"):  # an alert says why
        client.recv(100)


@pytest.mark.parametrize("wrong", ["client", "server"])
def test_a_certificate_of_another_ca(
    wrong: str, wires: tuple[socket.socket, socket.socket], ours: Tls, theirs: Tls
) -> None:
    client = SecureSocket(wires[0], theirs if wrong == "client" else ours, is_server=False)
    server = SecureSocket(wires[1], theirs if wrong == "server" else ours, is_server=True)
    with pytest.raises(AuthenticationError, match="the certificate of the server is not accepted"):
        shake(client, server)
    arrived(server)
    with pytest.raises(AuthenticationError, match="the client does not accept this process"):
        server.shake_hands()


def test_a_client_without_a_certificate(wires: tuple[socket.socket, socket.socket], ours: Tls) -> None:
    import ssl

    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    client = SecureSocket(wires[0], Tls(ours.server, bare, ours.certificate), is_server=False)
    server = SecureSocket(wires[1], ours, is_server=True)
    with pytest.raises(AuthenticationError, match="the client shows no certificate"):
        shake(client, server)
    arrived(client)
    with pytest.raises(AuthenticationError, match="the server does not accept this process"):
        client.recv(100)  # a TLS client is done before its certificate has been looked at


def test_an_older_version_is_refused(wires: tuple[socket.socket, socket.socket], ours: Tls) -> None:
    import ssl

    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    client = SecureSocket(wires[0], Tls(ours.server, old, ours.certificate), is_server=False)
    server = SecureSocket(wires[1], ours, is_server=True)
    assert not client.shake_hands()
    arrived(server)
    with pytest.raises(AuthenticationError, match="unsupported protocol"):
        server.shake_hands()
    arrived(client)
    with pytest.raises(AuthenticationError, match="protocol version"):
        client.shake_hands()


def test_who_speaks_without_tls_is_told(wires: tuple[socket.socket, socket.socket], ours: Tls) -> None:
    server = SecureSocket(wires[1], ours, is_server=True)
    wires[0].send(b"AIODIST and so on")
    arrived(server)
    with pytest.raises(
        AuthenticationError, match=r"^the client does not use TLS, this process does\. Set AIO"
    ):
        server.shake_hands()
    arrived(wires[0])
    assert b"this process does not use TLS, the server does" in wires[0].recv(1000)


def test_junk_is_no_tls(wires: tuple[socket.socket, socket.socket], ours: Tls) -> None:
    server = SecureSocket(wires[1], ours, is_server=True)
    wires[0].send(b"GET / HTTP/1.1\r\n")
    arrived(server)
    with pytest.raises(AuthenticationError, match="speaks neither TLS nor aiodist"):
        server.shake_hands()


def test_a_hello_is_bounded(
    wires: tuple[socket.socket, socket.socket], ours: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure, "HELLO_LIMIT", 3000)
    server = SecureSocket(wires[1], ours, is_server=True)
    wires[0].send(b"\x16\x03\x01\x3f\xff" + bytes(4000))  # a record that never ends
    with pytest.raises(WireError, match="more than"):
        while True:
            server.shake_hands()


def test_who_goes_away(wires: tuple[socket.socket, socket.socket], ours: Tls) -> None:
    server = SecureSocket(wires[1], ours, is_server=True)
    wires[0].close()
    arrived(server)
    with pytest.raises(ConnectionError, match="during the TLS handshake"):
        server.shake_hands()
