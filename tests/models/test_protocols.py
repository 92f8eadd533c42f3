"""The protocols of shared memory, in every order that x86-64 and ARM allow, with two and three processes.

Each protocol is a function that makes its programs; `left_out` names one of its orders or fences. Whole it
never goes wrong. Without any one of them it does, so none of them is there for nothing.

The words are those of `_engine/slots.h` (CODE, the payload, finished, ASLEEP, the bell), of
`_engine/exchange.h`, which withdraws and confirms, and of `transport/shm/ring.py` (tail, head).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.models.memory import (
    NEVER,
    Fence,
    Instruction,
    Load,
    Order,
    Program,
    Registers,
    Rules,
    Sleep,
    Store,
    outcomes,
)

WEAK = [Rules.x86, Rules.arm]
Made = tuple[list[Program], Callable[[Registers], bool]]
"""Programs, and whether an outcome is wrong."""


def order(wanted: Order, name: str, left_out: str) -> Order:
    return Order.relaxed if name == left_out else wanted


def fence(name: str, left_out: str) -> list[Instruction]:
    return [] if name == left_out else [Fence()]


def publishing(readers: int, left_out: str) -> Made:
    """A rank writes a payload, then CODE; peers look for CODE, then read the payload."""
    owner: Program = [Store("payload", 7), Store("code", 1, order(Order.release, "publish", left_out))]
    programs: list[Program] = [owner]
    look = order(Order.acquire, "look", left_out)
    programs += [
        [Load(f"code{reader}", "code", look, until=bool), Load(f"payload{reader}", "payload")]
        for reader in range(readers)
    ]
    return programs, lambda found: any(found[f"payload{reader}"] != 7 for reader in range(readers))


def reusing(readers: int, left_out: str) -> Made:
    """A slot is written again when every peer has noted that it has finished with what it held."""
    owner: list[Instruction] = []
    programs: list[Program] = [owner]
    for reader in range(readers):
        owner.append(
            Load(
                f"f{reader}",
                f"finished{reader}",
                order(Order.acquire, "look", left_out),
                until=lambda f: f == 1,
            )
        )
        programs.append([
            Load(f"payload{reader}", "payload"),
            Store(f"finished{reader}", 1, order(Order.release, "finish", left_out)),
        ])  # fmt: skip
    # The look is a loop, which orders the store behind it also where it is no acquire.
    owner.append(Store("payload", 9))
    return programs, lambda found: any(found.get(f"payload{reader}") == 9 for reader in range(readers))


def withdrawing(readers: int, left_out: str) -> Made:
    """A rank withdraws an operation (CODE is 0 again) before its user writes to the array; a peer that has
    read looks at CODE once more before it uses what it has read."""
    owner: Program = [
        Store("code", 0),
        *fence("withdraw", left_out),
        Store("array", 9, Order.past_cache),  # by the C library, perhaps
    ]
    programs: list[Program] = [owner]
    programs += [
        [
            Load(f"before{reader}", "code", Order.acquire),
            Load(f"array{reader}", "array"),
            *fence("confirm", left_out),
            Load(f"after{reader}", "code"),
        ]
        for reader in range(readers)
    ]

    def wrong(found: Registers) -> bool:
        return any(
            found[f"before{reader}"] == found[f"after{reader}"] == 1 and found[f"array{reader}"] == 9
            for reader in range(readers)
        )

    return programs, wrong


def sleeping(peers: int, left_out: str) -> Made:
    """A loop notes that it sleeps, looks once more, and sleeps on its bell; a peer publishes, and then looks
    whether it has to ring."""
    words = [f"code{peer}" for peer in range(peers)]
    registers = frozenset(f"seen{peer}" for peer in range(peers))
    sleeper: list[Instruction] = [Store("asleep", 1), *fence("sleep", left_out)]
    sleeper += [Load(f"seen{peer}", word) for peer, word in enumerate(words)]
    sleeper.append(Sleep("bell", lambda found: any(found[name] == 0 for name in registers), needs=registers))
    programs: list[Program] = [sleeper]
    programs += [_wakes(word, f"asleep{peer}", left_out) for peer, word in enumerate(words)]
    return programs, lambda found: found[NEVER] == 1


def _wakes(word: str, register: str, left_out: str) -> Program:
    """A peer's part of `sleeping`."""

    def asleep(found: Registers) -> bool:
        return found[register] == 1

    rings = Store("bell", 1, where=asleep, needs=frozenset([register]))
    return [Store(word, 1, Order.release), *fence("wake", left_out), Load(register, "asleep"), rings]


def ring(_: int, left_out: str) -> Made:
    """One place of a ring: the writer fills it and moves `tail`; the reader empties it and moves `head`; the
    writer fills it again."""
    writer: Program = [
        Store("place", 7),
        Store("tail", 1, order(Order.release, "fill", left_out)),
        Load("head", "head", order(Order.acquire, "room", left_out), until=lambda head: head == 1),
        Store("place", 9),
        Store("tail", 2, order(Order.release, "fill again", left_out)),
    ]
    reader: Program = [
        Load("tail1", "tail", order(Order.acquire, "take", left_out), until=lambda tail: tail >= 1),
        Load("first", "place"),
        Store("head", 1, order(Order.release, "empty", left_out)),
        Load("tail2", "tail", order(Order.acquire, "take again", left_out), until=lambda tail: tail >= 2),
        Load("second", "place"),
    ]
    return [writer, reader], lambda found: (found.get("first"), found.get("second")) != (7, 9)


PROTOCOLS: dict[str, tuple[Callable[[int, str], Made], list[str]]] = {
    "publishing": (publishing, ["publish", "look"]),
    "reusing": (reusing, ["finish"]),
    "withdrawing": (withdrawing, ["withdraw", "confirm"]),
    "sleeping": (sleeping, ["sleep", "wake"]),
    "ring": (ring, ["fill", "take", "empty", "fill again", "take again"]),
}
PEERS = [1, 2]
FIRST = {"withdrawing": {"code": 1}}


def goes_wrong(name: str, peers: int, rules: Rules, left_out: str) -> bool:
    programs, wrong = PROTOCOLS[name][0](peers, left_out)
    return any(wrong(dict(found)) for found in outcomes(rules, programs, FIRST.get(name)))


@pytest.mark.parametrize("peers", PEERS)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_it_holds(name: str, peers: int) -> None:
    for rules in Rules:
        assert not goes_wrong(name, peers, rules, "")


@pytest.mark.parametrize(
    ("name", "left_out"), [(name, one) for name in PROTOCOLS for one in PROTOCOLS[name][1]]
)
def test_without_one_of_its_orders_it_does_not(name: str, left_out: str) -> None:
    assert any(goes_wrong(name, 1, rules, left_out) for rules in WEAK)
    assert not goes_wrong(name, 1, Rules.sequential, left_out)  # so it is the order that is missing


@pytest.mark.parametrize(
    ("name", "left_out"), [("sleeping", "sleep"), ("sleeping", "wake"), ("withdrawing", "withdraw")]
)
def test_fences_that_x86_needs(name: str, left_out: str) -> None:
    assert goes_wrong(name, 1, Rules.x86, left_out)
