"""The compiled hot path: what takes longer in Python than what it does.

    combine.pyx     reductions of two arrays; `loops.h`, `halves.h`: its loops, in C
    slots.pyx       a group's slots in the segments of its members; `slots.h`, `words.h`: orders of loads
    exchange.pyx    running operations between ranks of one host; `exchange.h`: what they do, in C;
                    `layout.h`: the parts and blocks of their data
    ring.pyx        rings of records between two processes; `ring.h`: their layout and orders
    handle.pyx      what a Work does in the usual case: it is made, polled, and done
    messenger.pyx   the way of small messages: sent, and given to receives that wait; `message.h`: frames
    starter.pyx     the way into a collective on plain arrays: a prepared call is found, numbered, begun
    plain.pyx       small plain values as bytes, and back
    calls.pyx       the way of small calls: frames that leave together, answers and handlers found
    errors          those that its users tell apart
    fingerprint     which sources an extension was made of

Stubs (`.pyi`) say what each extension offers, and are the pages to read first. `pip install .` compiles
where there is a C compiler (hatch_build.py); without one everything works by plain Python, more slowly. There
is no third way. An extension is used only where it was made of the sources beside it: a changed clone must be
installed again.

AIODIST_ENGINE=python leaves it aside, AIODIST_ENGINE=compiled refuses to go on without it.

It knows arrays and memory, and nothing of groups. Ranks share memory only where both have the same engine:
they compare `NAME`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

from aiodist._engine.fingerprint import fingerprint

if TYPE_CHECKING:
    from aiodist._engine.calls import AskedFields as AskedFields
    from aiodist._engine.calls import Asker as Asker
    from aiodist._engine.calls import FrameEnd as FrameEnd
    from aiodist._engine.calls import HandlerFields as HandlerFields
    from aiodist._engine.calls import OpenCall as OpenCall
    from aiodist._engine.calls import ServedFields as ServedFields
    from aiodist._engine.calls import Server as Server
    from aiodist._engine.calls import SlotsFields as SlotsFields
    from aiodist._engine.calls import TableFields as TableFields
    from aiodist._engine.combine import Combiner
    from aiodist._engine.exchange import Exchange as Exchange
    from aiodist._engine.exchange import Plan as Plan
    from aiodist._engine.exchange import Signal as Signal
    from aiodist._engine.handle import Handle as Handle
    from aiodist._engine.handle import Issuer as Issuer
    from aiodist._engine.handle import TurnClock as TurnClock
    from aiodist._engine.messenger import Inbox as Inbox
    from aiodist._engine.messenger import Messenger as Messenger
    from aiodist._engine.messenger import PreparedMessage as PreparedMessage
    from aiodist._engine.messenger import Receive as Receive
    from aiodist._engine.messenger import ReceiveAccount as ReceiveAccount
    from aiodist._engine.messenger import SendAccount as SendAccount
    from aiodist._engine.ring import Consumer as Consumer
    from aiodist._engine.ring import Producer as Producer
    from aiodist._engine.slots import EndOfTurn as EndOfTurn
    from aiodist._engine.slots import Memory as Memory
    from aiodist._engine.slots import Slots as Slots
    from aiodist._engine.starter import Prepared as Prepared
    from aiodist._engine.starter import Starter as Starter

VARIABLE = "AIODIST_ENGINE"
"""What the user asks for; `base.environment.tuning` refuses what is no choice."""


_EXTENSIONS = ("combine", "handle", "slots", "exchange", "starter", "ring", "messenger", "plain", "calls")


class Compiled(Protocol):
    """All that the extensions offer; their stubs say what each part does."""

    FINGERPRINT: str
    Combiner: type[Combiner]
    Memory: type[Memory]
    EndOfTurn: type[EndOfTurn]
    Slots: type[Slots]
    Plan: type[Plan]
    Signal: type[Signal]
    Handle: type[Handle]
    Issuer: type[Issuer]
    TurnClock: type[TurnClock]
    Prepared: type[Prepared]
    Starter: type[Starter]
    Producer: type[Producer]
    Consumer: type[Consumer]
    Inbox: type[Inbox]
    Messenger: type[Messenger]
    PreparedMessage: type[PreparedMessage]
    Receive: type[Receive]
    ReceiveAccount: type[ReceiveAccount]
    SendAccount: type[SendAccount]
    OpenCall: type[OpenCall]
    AskedFields: type[AskedFields]
    ServedFields: type[ServedFields]
    HandlerFields: type[HandlerFields]
    SlotsFields: type[SlotsFields]
    TableFields: type[TableFields]
    FrameEnd: type[FrameEnd]
    Asker: type[Asker]
    Server: type[Server]
    RING_LAYOUT: tuple[int, ...]
    LAYOUT: tuple[int, ...]
    KINDS: dict[str, int]

    def encode_plain(self, x: Any) -> bytes | None: ...

    def decode_plain(self, data: Any, unless: Any) -> Any: ...

    def scale_halves(self, array: Any, code: int, number: float, divide: bool) -> None: ...

    def deliver(self, ring: Any, channel: Any, most: int) -> int: ...

    def fence(self) -> None: ...

    def drive(self, active: list[Any], seconds: float, stop: Any) -> list[int]: ...


def _elsewhere() -> list[str]:
    """Folders in which an editable installation has put the extensions."""
    here, found = Path(__file__).parent, []
    for entry in sys.path:
        if isinstance(entry, str) and entry:  # people put other things there, too
            place = Path(entry) / "aiodist" / "_engine"
            try:
                if place != here and any(place.glob("combine.*.so")):
                    found.append(str(place))
            except (OSError, ValueError):  # it cannot be looked into
                continue
    return found


def _load(asked: str) -> tuple[Compiled | None, str]:
    """The extensions, or why they are not used."""
    if asked == "python":
        return None, f"{VARIABLE}=python"
    __path__.extend(_elsewhere())
    try:
        found = [importlib.import_module(f"aiodist._engine.{name}") for name in _EXTENSIONS]
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)
        return None, "it is not installed" if absent else f"it cannot be loaded: {error}"
    wanted = fingerprint(Path(__file__).parent)
    if wanted and any(wanted != extension.FINGERPRINT for extension in found):
        why = "the installed one was made of other sources: install this clone again"
        logging.getLogger("aiodist").warning("aiodist runs by plain Python: %s", why)
        return None, why
    offered = SimpleNamespace(
        **{name: value for extension in found for name, value in vars(extension).items()}
    )
    return cast("Compiled", offered), ""


compiled, WHY_NOT = _load(os.environ.get(VARIABLE, "").strip().lower())
"""The extension; None where plain Python does its work, and why."""

NAME = "" if compiled is None else compiled.FINGERPRINT
"""The engine that this process uses, for comparison with others'; '' is plain Python."""


def describe() -> str:
    """The engine that this process uses, in a few words."""
    return f"compiled ({NAME})" if compiled is not None else f"plain Python: {WHY_NOT}"
