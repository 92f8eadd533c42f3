"""The calls of this process to another that are not sent yet, in the order in which they are to be. Pure.

    begin ──▶ begun ──put──▶ waits ──leave──▶ gone
                     put ──────┘

All that waits goes in one order. A call takes its place when its arguments are bytes, so it does not wait for
a large one that is being encoded. A message has its place from the beginning: messages of one process come in
the order in which they began.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Queue(Generic[T]):
    """The calls that wait, in order.

    Attributes:
        waiting: those that may be sent, once there is room; the first one first.
        messages: those that wait until the first of them is bytes; whether each of them is.
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[T, None] = OrderedDict()
        self.messages: OrderedDict[T, bool] = OrderedDict()

    def begin(self, message: T) -> None:
        """Keep the place of a message whose bytes are not known yet."""
        self.messages[message] = False

    def put(self, call: T, *, message: bool) -> None:
        """Have a call wait, whose bytes are known now."""
        if message and self.messages:
            self.messages[call] = True
            self._go_on()
        else:
            self.waiting[call] = None

    def leave(self, call: T) -> None:
        """Take out a call that is sent, or that its caller gives up. May be repeated."""
        if call in self.waiting:
            del self.waiting[call]
        elif call in self.messages:
            del self.messages[call]
            self._go_on()

    def _go_on(self) -> None:
        """Have those messages wait for room before which none is unknown."""
        messages = self.messages
        while messages:
            first = next(iter(messages))
            if not messages[first]:
                return
            del messages[first]
            self.waiting[first] = None
