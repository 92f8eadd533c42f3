"""What a Work does in the usual case: it is made, polled while it is awaited, and done at once.

`backends/handle.py` has the same in Python: the reference, and what a process without the engine uses.
"""

from collections.abc import Iterator
from typing import Any, Self, final

from typing_extensions import disjoint_base

FINGERPRINT: str
"""Stands for the sources of which the extension was made."""

@disjoint_base
class TurnClock:
    """The time that the present turn of a loop has taken, and that of polling in it: the base of `Turn`."""

    since: float | None
    def __new__(cls) -> Self: ...
    def start_polling(self, limit: float) -> float: ...
    def stop_polling(self) -> None: ...

@disjoint_base
class Issuer:
    """What an await asks of what a group's handles share: its thread, whether the loop runs, and its turn."""

    thread: int
    running: Any
    turn: Any

@disjoint_base
class Site:
    """The line of the program that issues operations of one sort, looked for only where it is another one."""

@disjoint_base
class Driver:
    """The object that brings one operation on while it is awaited, without a call of Python code."""

    def __new__(cls) -> Self: ...

@final
class Awaiting(Iterator[Any]):
    """The iterator of one await. Where the result is not there at once, `_await_on` goes on."""

    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any: ...
    def throw(self, *error: Any) -> Any: ...
    def close(self) -> None: ...
    @property
    def gi_frame(self) -> None:
        """None: for those who look what a task awaits."""

    @property
    def gi_yieldfrom(self) -> Any:
        """What goes on with it; None: nothing yet."""

@disjoint_base
class Handle:
    """The fields of a Work, and the await of one that is done, or ends within a short poll.

    All else is in `Work`, which is one: `_await_on` is the whole await, `_wake` what follows an end.
    """

    _issuer: Any
    _call: Any
    _seq: int | None
    _noted: Any
    _driver: Any
    _result: Any
    _error: BaseException | None
    _waiters: Any
    _callbacks: Any
    _completion: Any
    _take_back: Any
    _limit: float | None
    _steps: Any
    _state: int
    _held_back: bool
    _unheld: bool
    _awaited: bool
    _followed: bool
    _untold: bool
    def __init__(
        self,
        issuer: Any,
        call: Any,
        held: bool,
        driver: Any = None,
        result: Any = None,
        seq: int | None = None,
        noted: Any = None,
    ) -> None: ...
    def __await__(self) -> Awaiting: ...
    def _finish(self, result: Any) -> None:
        """End the operation well. Called once, on the loop."""
