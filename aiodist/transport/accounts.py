"""The fields of a channel's ends that are asked for each small message: with the engine they are C's.

`sending` and `receiving` say what they are. Without the engine they are plain attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiodist import _engine

if TYPE_CHECKING:
    from aiodist.transport.link import Link


class PlainAccount:
    """The base of an end without the engine."""


if TYPE_CHECKING:

    class SendAccount:
        """The base of a sending end."""

        link: Link | None
        over: bool
        closing: bool
        budget: int
        budgets: int
        spent_all: int
        spent: dict[int, int]
        offers: list[Any]

    class ReceiveAccount:
        """The base of a receiving end."""

        link: Link | None
        rank: int
        budgets: int
        batch: int
        spent_all: int
        owed_all: int
        owed: dict[int, int]
        questions: set[Any]
        takers: Any
else:
    SendAccount = PlainAccount if _engine.compiled is None else _engine.compiled.SendAccount
    ReceiveAccount = PlainAccount if _engine.compiled is None else _engine.compiled.ReceiveAccount
