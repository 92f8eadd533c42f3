"""A store's life, drawn by a seed: clients that come, ask, ask again, break off, leave; time that passes."""

from __future__ import annotations

import random
from typing import Any

import msgpack

from aiodist.rendezvous.events import Connected, Disconnected, Effect, StoreReply, StoreRequest, Tick
from aiodist.rendezvous.machine import StoreMachine
from aiodist.rendezvous.machine.changes import ChangeKind

CLIENTS = [bytes([65 + number]) * 16 for number in range(4)]
KEYS = [f"k{number}" for number in range(5)]


class Life:
    """Feeds a machine, and knows what each client has been told."""

    def __init__(self, machine: StoreMachine, seed: int) -> None:
        self.machine = machine
        self.rng = random.Random(seed)
        self.now = 100.0
        self.ids = dict.fromkeys(CLIENTS, 0)
        self.here: set[bytes] = set()
        self.tokens: list[int] = [1]
        self.unsettled: dict[bytes, list[int]] = {client: [] for client in CLIENTS}
        self.asked: list[StoreRequest] = []

    def step(self) -> list[Effect]:
        """One more event → what the machine did."""
        rng = self.rng
        client = rng.choice(CLIENTS)
        if client not in self.here:
            self.here.add(client)
            effects = self.machine.handle(Connected(client), self.now)
            if self.ids[client]:
                effects += self._ask(client, "resume", [[*self.unsettled[client]], 0])
            return effects
        chance = rng.random()
        if chance < 0.06:
            self.here.discard(client)
            return self.machine.handle(Disconnected(client), self.now)
        if chance < 0.12:
            self.now += rng.choice((0.1, 1.0, 3.0, 70.0))
            return self.machine.handle(Tick(), self.now)
        if chance < 0.14:
            self.here.discard(client)
            effects = self._ask(client, "goodbye", [])
            self.unsettled[client].clear()
            return effects + self.machine.handle(Disconnected(client), self.now)
        if chance < 0.2 and (again := [request for request in self.asked if request.client == client]):
            return self.machine.handle(rng.choice(again[-3:]), self.now)
        method, args = self.request()
        return self._ask(client, method, args)

    def request(self) -> tuple[str, list[Any]]:
        """A method and its arguments."""
        rng = self.rng
        key, value = rng.choice(KEYS), rng.choice((b"", b"1", b"2" * 20, b"x" * 300))
        number = f"n{rng.randrange(3)}"
        choices: list[tuple[str, list[Any]]] = [
            ("set", [key, value, None]),
            ("set", [key, value, rng.choice((0.5, 5, 50.0))]),
            ("multi_set", [[key, rng.choice(KEYS)], [value, b"m"]]),
            ("add", [number, rng.randint(-5, 5)]),
            ("append", [key, value]),
            ("compare_set", [key, rng.choice((b"", b"1", value)), rng.choice((b"1", b"y" * 300))]),
            ("delete_key", [key]),
            ("claim", [key, value]),
            ("fence", []),
            ("lease_grant", [rng.choice((0.5, 5.0, 50))]),
            ("lease_renew", [rng.choice(self.tokens[-3:])]),
            ("lease_set", [rng.choice(self.tokens[-3:]), key, value]),
            ("lease_claim", [rng.choice(self.tokens[-3:]), key, value]),
            ("lease_end", [rng.choice(self.tokens[-3:])]),
            ("gather", ["g", rng.randrange(2), 2, value, 5.0]),
            ("gather", ["alone", 0, 1, value, 5.0]),
            ("wait", [[key], 1.0]),
            ("multi_get", [[key, number], 1.0]),
            ("watch", [key[:1]]),
        ]
        return rng.choice(choices)

    def _ask(self, client: bytes, method: str, args: list[Any]) -> list[Effect]:
        self.ids[client] += 1
        settled: list[int] = []
        if self.rng.random() < 0.5 and method != "resume":
            settled, self.unsettled[client] = self.unsettled[client], []
        request = StoreRequest(client, self.ids[client], method, args, settled)
        self.asked = [*self.asked[-20:], request]
        effects = self.machine.handle(request, self.now)
        for effect in effects:
            if isinstance(effect, StoreReply):
                self.unsettled[effect.client].append(effect.id)
                if method == "lease_grant" and effect.id == request.id and type(effect.value) is int:
                    self.tokens.append(effect.value)
        return effects


def state(machine: StoreMachine) -> list[str]:
    """All that lasts of a store, to be compared."""
    changes = msgpack.unpackb(msgpack.packb(machine.dump()))
    return sorted(repr([*c[:2], sorted(c[2])] if c[0] == ChangeKind.gathered else c) for c in changes)
