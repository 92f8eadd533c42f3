"""Reading and comparing what ranks leave for each other in the store before there is a group. Pure.

It comes from members of the job, by way of a store that all of them may write. So a card is looked at before
anybody acts on it: a broken one is its rank's fault, and named so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiodist.base.environment.tls import NAMES
from aiodist.base.errors import AuthenticationError, RendezvousError
from aiodist.base.sanitize import one_line
from aiodist.net.wire.bounded import unpack
from aiodist.net.wire.handshake import NONCE_BYTES

_LONGEST_NAME = 255

# What an endpoint may say of itself. Which of these there are depends on where it listens.
_ENDPOINT: dict[str, Callable[[Any], bool]] = {
    "nonce": lambda value: type(value) is bytes and len(value) == NONCE_BYTES,
    "tcp": lambda value: type(value) is list and [*map(type, value)] == [str, int] and 0 < value[1] < 1 << 16,
    "unix": lambda value: type(value) is bytes and 0 < len(value) < 100,
    "mail": lambda value: type(value) is bytes and 0 < len(value) < 100,
    "boot": lambda value: type(value) is str,
}
_ALWAYS = ("nonce", "tcp")  # said by every endpoint that says one of these


def read_cards(answers: list[bytes], mine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cards of all ranks.

    Args:
        answers: by rank, as they came.
        mine: this rank's own; what it has, others must have, too.

    Raises:
        RendezvousError: one cannot be a card; names its rank. Another version's may have other fields: of one
            that says so only the host is looked at, and it is for `check_cards` to refuse it.
    """
    cards = []
    for rank, answer in enumerate(answers):
        try:
            card = unpack(answer, strict_map_key=True)  # of others the sender could choose the hashes
            _check(card, mine)
        except Exception as error:
            raise _unreadable(rank, error) from error
        cards.append(card)
    return cards


def check_cards(cards: list[dict[str, Any]]) -> None:
    """Refuse a job that mixes versions, byte orders or settings; the error says which rank has which.

    Raises:
        AuthenticationError: another protocol version or byte order.
        RendezvousError: settings that every rank must share differ.
    """
    first = cards[0]
    for rank, card in enumerate(cards):
        where = f"rank {rank} on {card['host']}"
        if card["protocol"] != first["protocol"]:
            raise AuthenticationError(
                f"{where} speaks protocol {card['protocol']}, rank 0 on {first['host']} {first['protocol']}",
                hint="Install the same aiodist on every host",
            )
    for rank, card in enumerate(cards):  # only now: the cards of another version may have other fields
        where = f"rank {rank} on {card['host']}"
        if card["byteorder"] != first["byteorder"]:
            raise AuthenticationError(
                f"{where} is {card['byteorder']}-endian,"
                f" rank 0 on {first['host']} {first['byteorder']}-endian",
                hint="All hosts of a job must have the same byte order",
            )
        for name, value in first["agreed"].items():
            if card["agreed"].get(name) != value:
                if name == "AIODIST_TLS":  # no variable, but what its variables come to
                    with_tls, without = (where, "rank 0") if value == "0" else ("rank 0", where)
                    raise RendezvousError(
                        f"{with_tls} uses TLS, {without} does not",
                        hint=f"Set {', '.join(NAMES)} on every rank, or on none",
                    )
                raise RendezvousError(
                    f"{where} has {name}={card['agreed'].get(name)!r}, rank 0 has {value!r}",
                    hint="Set it alike on every rank",
                )


def read_ranks(answers: list[bytes]) -> list[set[int]]:
    """The ranks that each rank names, by rank. `RendezvousError` if one names none."""
    found = []
    for rank, answer in enumerate(answers):
        try:
            ranks = unpack(answer)
            if type(ranks) is not list or not all(type(other) is int for other in ranks):
                raise ValueError("no list of ranks")
        except Exception as error:
            raise _unreadable(rank, error) from error
        found.append(set(ranks))
    return found


def _check(card: Any, mine: Mapping[str, Any]) -> None:
    if type(card) is not dict:
        raise ValueError("it has no fields")
    host = card.get("host")
    if type(host) is not str or not host.isprintable() or len(host) > _LONGEST_NAME:
        raise ValueError("no host")
    if type(card.get("protocol")) is not int:
        raise ValueError("no protocol version")
    if card["protocol"] != mine["protocol"]:
        return
    for name, value in mine.items():
        if type(card.get(name)) is not type(value):
            raise ValueError(f"no {name}")
    if card["byteorder"] not in ("little", "big"):
        raise ValueError("no byte order")
    for name, value in card["agreed"].items():
        if type(name) is not str or type(value) is not str:
            raise ValueError("settings that are no text")
    if [*map(type, card["seat"])] != [str, int, int]:
        raise ValueError("no seat")
    backend = card["backend"]
    if type(backend.get("asked")) is not str:
        raise ValueError("no backend")
    for field, kind in (("engines", str), ("told", bytes)):
        if not _maps(backend.get(field), kind):
            raise ValueError(f"a backend without {field}")
    if backend["engines"].keys() != backend["told"].keys():
        raise ValueError("a backend that tells nothing")
    endpoint = card["endpoint"]
    for name in _ALWAYS:
        if name in mine["endpoint"] and name not in endpoint:
            raise ValueError(f"an endpoint without {name}")
    for name, value in endpoint.items():
        fits = _ENDPOINT.get(name) if type(name) is str else None
        if fits is not None and not fits(value):
            raise ValueError(f"an endpoint with another {name}")


def _maps(value: Any, kind: type) -> bool:
    return type(value) is dict and all(type(k) is str and type(v) is kind for k, v in value.items())


def _unreadable(rank: int, error: Exception) -> RendezvousError:
    words = one_line(str(error), 100)
    return RendezvousError(
        f"what rank {rank} says of itself cannot be read ({words or type(error).__name__})",
        hint="See whether something else writes to this job's store; install the same aiodist on every host",
    )
