"""Where rank 0 listens, and that a stale address holds nobody up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from aiodist.rendezvous import Invitation, hosting
from aiodist.rendezvous.announcement import About, Announcement
from aiodist.rendezvous.launchers import address_exchange as told

PLACE = {"RANK": "0", "WORLD_SIZE": "2"}
SECRET = {"AIODIST_SECRET": "s" * 32}
ABOUT = About("the address of rank 0", "job", "key", b"s" * 32)


def asked(**environ: str) -> Invitation:
    secret = environ.get("AIODIST_SECRET", "").encode()
    return replace(Invitation.of("env://", -1, -1, 60.0, {**PLACE, **environ}), secret=secret)


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose own name is 127.0.1.1 to it, and whose address is another."""

    async def resolve(host: str, port: int) -> list[tuple[int, Any]]:
        found = {"node1": "127.0.1.1", "node2": "192.0.2.7"}.get(host, host)
        return [(2, (found, port))]

    own = {"127.0.1.1": "127.0.0.1", "127.0.0.1": "127.0.0.1", "192.0.2.7": "192.0.2.1"}
    monkeypatch.setattr("aiodist.net.sockets.resolve", resolve)
    monkeypatch.setattr("aiodist.net.sockets._own_address", lambda family, there: own.get(there, ""))
    monkeypatch.setattr(hosting, "outward", lambda: "192.0.2.1")


@pytest.mark.parametrize(
    ("there", "environ", "expected"),
    [
        ("node2", SECRET, "192.0.2.1"),
        ("node1", SECRET, "192.0.2.1"),  # not what it is to itself
        ("node1", {"AIODIST_ALLOW_INSECURE": "1"}, "192.0.2.1"),
        ("node1", {}, "127.0.0.1"),  # without a secret there are no other hosts
        ("127.0.0.1", SECRET, "127.0.0.1"),
        ("localhost", SECRET, "127.0.0.1"),
        ("", SECRET, "192.0.2.1"),
        ("unknown", SECRET, "192.0.2.1"),
    ],
)
async def test_the_address_towards_those_who_come(
    there: str, environ: dict[str, str], expected: str, debian: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there == "localhost":
        monkeypatch.setattr("aiodist.net.sockets._own_address", lambda family, there: "127.0.0.1")
    assert await hosting.address_towards(there, asked(**environ)) == expected


async def test_an_address_of_a_host_that_is_gone_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets to it vanish, and meanwhile there is another rank 0."""
    monkeypatch.setattr(told, "_PROBE", 0.01)
    monkeypatch.setattr(told, "_AGAIN", 0.0)
    looked: list[str] = []

    class Texts:
        async def set(self, key: str, value: str) -> None: ...

        async def read(self, key: str) -> str | None:
            looked.append(key)
            return Announcement(f"10.0.0.{len(looked)}", 1, b"i" * 16).text(ABOUT)

    async def listens(address: tuple[str, int], patience: float) -> bool:
        if address[0] != "10.0.0.3":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(patience):
                    await asyncio.Event().wait()
        return address[0] == "10.0.0.3"

    monkeypatch.setattr(told, "listens", listens)
    store = await told._announced(Texts(), "a store", "key", 60.0, ABOUT)
    assert (store.host, store.port) == ("10.0.0.3", 1)
