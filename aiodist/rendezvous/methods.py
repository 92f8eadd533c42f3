"""The methods of a store: the one table that client, server and all kinds of stores go by.

From a line of it follow what the wire carries and what is refused there (`check_args`), what an answer can be
(`check_answer`), how a call looks below a prefix (`PrefixStore`), which part of
`machine` carries it out, and whether its answer is kept until the client has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from aiodist.base.errors import WireError
from aiodist.rendezvous.rules import RefusedError
from aiodist.rendezvous.shapes import (
    FLAG,
    KEY,
    KEYS,
    NOTHING,
    NUMBER,
    NUMBERS,
    TIMEOUT,
    TTL,
    TTL_OR_NONE,
    VALUE,
    VALUES,
    Shape,
)


@dataclass(frozen=True)
class Method:
    """A method of a store.

    Args:
        part: of `StoreMachine`, which carries it out; '' for the machine itself: it is about the client.
        args: the shapes of its arguments.
        answer: the shape of its answer; None where a client looks at it in another way.
        changes: it changes the store and is confirmed, so it must happen once: the machine keeps the answer
            until the client has it. Any other is safe to repeat.
        meets: it waits for what another client does: the answer is not to be had in microseconds.
        count: of a list that answers, how long it is, by the arguments.
    """

    part: str
    args: tuple[Shape, ...]
    answer: Shape | None = None
    changes: bool = False
    meets: bool = False
    count: Callable[[list[Any]], int] | None = None

    @cached_property
    def waits(self) -> bool:
        """Whether its last argument says how many seconds it may take; the machine keeps to it."""
        return TIMEOUT in self.args


METHODS: dict[str, Method] = {
    "set": Method("keys", (KEY, VALUE, TTL_OR_NONE), NOTHING, changes=True),
    "multi_set": Method("keys", (KEYS, VALUES), NOTHING, changes=True),
    "multi_get": Method("waits", (KEYS, TIMEOUT), VALUES, count=lambda args: len(args[0])),
    "wait": Method("waits", (KEYS, TIMEOUT), NOTHING, meets=True),
    "check": Method("keys", (KEYS,), FLAG),
    "add": Method("keys", (KEY, NUMBER), NUMBER, changes=True),
    "append": Method("keys", (KEY, VALUE), NOTHING, changes=True),
    "compare_set": Method("keys", (KEY, VALUE, VALUE), VALUE, changes=True),  # key, expected, desired
    "claim": Method("keys", (KEY, VALUE), VALUE, changes=True),  # key, whose it is
    "delete_key": Method("keys", (KEY,), FLAG, changes=True),
    "list_keys": Method("keys", (KEY,), KEYS),  # prefix
    "num_keys": Method("keys", (KEY,), NUMBER),
    "fence": Method("keys", (), NUMBER, changes=True),
    "lease_grant": Method("leases", (TTL,), NUMBER, changes=True),  # → token
    "lease_renew": Method("leases", (NUMBER,), FLAG),  # token
    "lease_set": Method("keys", (NUMBER, KEY, VALUE), NOTHING, changes=True),
    "lease_claim": Method("keys", (NUMBER, KEY, VALUE), VALUE, changes=True),
    "lease_end": Method("keys", (NUMBER,), FLAG, changes=True),
    "gather": Method(  # name, rank, world size, card
        "gathers",
        (KEY, NUMBER, NUMBER, VALUE, TIMEOUT),
        VALUES,
        changes=True,
        meets=True,
        count=lambda args: int(args[2]),
    ),
    "watch": Method("watches", (KEY,)),  # prefix
    "cancel": Method("", (NUMBER,)),  # the id of a request whose answer nobody wants any more
    "resume": Method("", (NUMBERS, NUMBER)),  # the ids whose answers are still wanted, the last confirmed
    "goodbye": Method("", ()),
    "ping": Method("", ()),
}

# What fits by its types alone, as one look-up: checking one by one takes 1 µs of the 6 of a request.
_PLAIN: set[tuple[Any, ...]] = {
    (name, *types)
    for name, method in METHODS.items()
    if not any(shape.listed or shape.least is not None for shape in method.args)
    for types in itertools.product(*(shape.types for shape in method.args))
}


def check_args(name: str, args: list[Any]) -> Method:
    """Return the method of this name; refuse one that there is not, or arguments that it cannot take."""
    if (name, *map(type, args)) in _PLAIN:
        return METHODS[name]
    method = METHODS.get(name)
    if method is None:
        raise RefusedError(f"the store has no method '{name[:40]}'")
    if len(args) != len(method.args):
        raise RefusedError(f"{name} takes {len(method.args)} arguments, got {len(args)}")
    for number, (value, shape) in enumerate(zip(args, method.args, strict=True), 1):
        if not shape.fits(value):
            raise RefusedError(f"argument {number} of {name} cannot be a {type(value).__name__}")
    return method


def check_answer(name: str, args: list[Any], value: Any) -> None:
    """`WireError` unless `value` can be the answer to this request."""
    method = METHODS[name]
    if method.answer is None:
        return
    if not method.answer.fits(value) or (method.count is not None and len(value) != method.count(args)):
        raise WireError(f"the store answers {name} with a {type(value).__name__} that cannot be its answer")
