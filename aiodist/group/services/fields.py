"""The fields of calls, of their tables and of handlers: with the engine they are C's, which looks at them
for each small call. What they mean is said where they are used.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from aiodist import _engine

PARTS = 1 << 20
"""Bytes of parts of one stream that come before any is taken."""

if TYPE_CHECKING:
    OpenCall = _engine.OpenCall
    AskedFields = _engine.AskedFields
    ServedFields = _engine.ServedFields
    HandlerFields = _engine.HandlerFields
    SlotsFields = _engine.SlotsFields
    TableFields = _engine.TableFields
elif _engine.compiled is not None:
    OpenCall = _engine.compiled.OpenCall
    AskedFields = _engine.compiled.AskedFields
    ServedFields = _engine.compiled.ServedFields
    HandlerFields = _engine.compiled.HandlerFields
    SlotsFields = _engine.compiled.SlotsFields
    TableFields = _engine.compiled.TableFields
else:
    HandlerFields = SlotsFields = object

    class OpenCall:
        stopped = ""
        credit = PARTS
        nbytes = 0

    class AskedFields(OpenCall):
        number = untold = 0
        timer = by = None
        name = payload = b""

        def __init__(self, kind: Any, waiter: Any) -> None:
            self.kind = kind
            self.waiter = waiter

    class ServedFields(OpenCall):
        work = room = slot = None
        begun = started = False

        def __init__(self, number: int, kind: Any, nbytes: int, deadline: float) -> None:
            self.number = number
            self.kind = kind
            self.nbytes = nbytes
            self.deadline = deadline

    class TableFields:
        def __init__(self) -> None:
            self.calls: dict[int, Any] = {}
            self.nbytes = self.last = 0
            self.due = math.inf
