"""Arguments and results as bytes; large ones off the event loop (law 7)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Self

from aiodist.base.errors import UsageError
from aiodist.group.services import records
from aiodist.group.services.outcomes import too_large
from aiodist.net.wire import objects
from aiodist.net.wire.calls import MAX_PAYLOAD
from aiodist.net.wire.objects import LARGE

_MANY = 4096  # parts that are looked at: with more of them it is large
_TRAVELS = (
    "Convert it: None, numbers, text, bytes, lists, tuples, sets, dicts, dates, dataclasses, NumPy arrays "
    "and torch tensors on the CPU travel"
)
_PLAIN = frozenset((int, float, bool, type(None)))
_MAPPINGS = frozenset((dict, OrderedDict))
_CONTAINERS = _MAPPINGS | {list, tuple, set, frozenset}


def encode(value: Any) -> bytes:
    """A value as bytes, dataclasses by their fields.

    Raises:
        UsageError: something in it cannot be sent, or it is too large.
    """
    try:
        payload = objects.encode(value, apart=records.fields)
    except UsageError as error:
        if error.hint != objects.UNLESS_PICKLED:
            raise
        raise UsageError(error.message, hint=_TRAVELS) from None  # calls pickle nothing
    if len(payload) > MAX_PAYLOAD:
        raise UsageError(
            too_large("what is to be sent", len(payload), MAX_PAYLOAD),
            hint="Send it in parts (pg.stream), or as a tensor (pg.send)",
        )
    return payload


def is_bulky(value: Any) -> bool:
    """Whether a value may be large, as far as a look at `_MANY` of its parts shows. What holds the same part
    often, or itself, is: each part counts as often as it would be written.

    Raises:
        UsageError: a dataclass among them has no value for one of its fields.
    """
    looked, nbytes, rest = 0, 0, [value]
    while rest:
        one = rest.pop()
        kind = type(one)
        if kind in _PLAIN:
            continue
        looked += 1
        inside: Collection[Any] = ()
        if kind in (bytes, str):
            nbytes += len(one)
        elif kind in _CONTAINERS:
            inside = one
        elif dataclasses.is_dataclass(kind):
            inside = (records.fields(one) or {}).values()
        else:
            size = getattr(one, "nbytes", 0)
            nbytes += size if isinstance(size, int) else 0
        looked += len(inside)
        if looked >= _MANY or nbytes >= LARGE:
            return True
        rest += inside
        if kind in _MAPPINGS:
            rest += one.values()
    return False


async def encoded(value: Any) -> bytes:
    """`encode`, in a thread where the value is large; it must not be changed meanwhile."""
    small = objects.encode_small(value)
    if small is not None:
        return small
    if is_bulky(value):
        return await asyncio.to_thread(encode, value)
    return encode(value)


class Received:
    """A value that came as bytes. A thread that decodes it goes on when nobody awaits it any more, and the
    next one who does has what was decoded meanwhile.

    Args:
        payload: the bytes; kept, since they count as long as the value is not taken.
    """

    __slots__ = ("_decoding", "payload")

    def __init__(self, payload: bytes | bytearray | memoryview) -> None:
        self.payload = payload
        self._decoding: asyncio.Future[Any] | None = None

    async def value(self) -> Any:
        """The value. `WireError` where the bytes were not encoded so. One task at a time; may be repeated."""
        decoding = self._decoding
        if decoding is None:
            if not objects.is_slow(self.payload):
                return objects.decode(self.payload)
            loop = asyncio.get_running_loop()
            decoding = self._decoding = loop.run_in_executor(None, objects.decode, self.payload)
            decoding.add_done_callback(_note_error)
        if not decoding.done():
            await asyncio.wait((decoding,))  # which does not cancel it
        return decoding.result()

    def fails(self, error: BaseException) -> Self:
        """Have an error that decoding raised before, and no bytes → itself. Nobody has heard of it yet."""
        self.payload = b""
        self._decoding = asyncio.get_running_loop().create_future()
        self._decoding.set_exception(error)
        _note_error(self._decoding)
        return self

    def holds(self, value: Any) -> Self:
        """Have a value that was decoded before, and no bytes → itself. It was taken, and came back."""
        self.payload = b""
        self._decoding = asyncio.get_running_loop().create_future()
        self._decoding.set_result(value)
        return self


def _note_error(decoding: asyncio.Future[Any]) -> None:
    """Have asked for an error: perhaps nobody wants the value any more."""
    if not decoding.cancelled():
        decoding.exception()


async def decoded(payload: bytes | bytearray | memoryview) -> Any:
    """Decode bytes, in a thread where that is slow. `WireError` where they were not encoded so."""
    if objects.is_slow(payload):
        return await asyncio.to_thread(objects.decode, payload)
    return objects.decode(payload)
