"""The way of small calls between two processes, over one connection.

Both directions have tables of the calls without an answer, which Python owns (`group/services`): their
fields are C's. The engine sends a request whose arguments are small and plain, finds the call that an answer
is for, and runs the handler that a request is for. A frame that is no usual one goes to Python, before
anything has happened. What comes is never trusted: lengths, kinds, names and numbers are looked at before
they are used, and no Python code runs while a table or a buffer is half changed.
"""

from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar
from typing import Any, final

from typing_extensions import disjoint_base

from aiodist.base.errors import WireError as WireError

FINGERPRINT: str
"""Stands for the sources of which the extension was made."""

@disjoint_base
class OpenCall:
    """A call without an answer; `group/services/under_way.py` says what the fields mean."""

    number: int
    kind: Any
    nbytes: int
    deadline: float
    stopped: str
    credit: int

@disjoint_base
class AskedFields(OpenCall):
    """A call that is asked; see `group/services/asking.py`."""

    waiter: Any
    name: bytes
    payload: bytes
    timer: Any
    by: Any
    untold: int

    def __init__(self, kind: Any, waiter: Any) -> None: ...

@disjoint_base
class ServedFields(OpenCall):
    """A call that came; see `group/services/serving.py`."""

    work: Any
    room: Any
    slot: Any
    begun: bool
    started: bool

    def __init__(self, number: int, kind: Any, nbytes: int, deadline: float) -> None: ...

@disjoint_base
class HandlerFields:
    """A function that others call; see `group/services/handlers.py`."""

    name: str
    function: Callable[..., Any]
    slots: Any
    streams: bool
    quick: bool
    least: int
    most: float
    builders: list[Any]

@disjoint_base
class SlotsFields:
    """Places for calls that run at once; see `group/services/handlers.py`."""

    free: int
    line: Any

@disjoint_base
class TableFields:
    """The calls of one connection; see `group/services/under_way.py`."""

    calls: dict[int, Any]
    nbytes: int
    last: int
    due: float

@disjoint_base
class Matcher:
    """What takes the usual frames of one direction."""

@disjoint_base
class FrameEnd:
    """The hot half of a connection; see `group/services/frames.py`, which has the same in plain Python."""

    over: bool
    full: bool
    holds: bool
    together: int
    matcher: Matcher | None
    bodies: dict[int, Any]
    lanes: dict[int, Any]

    def set_up(
        self, call_soon: Callable[..., object], bodies: dict[int, Any], lanes: dict[int, Any]
    ) -> None: ...
    def send(self, data: bytes, *, many: int = 0) -> None: ...
    def flush(self) -> None: ...
    def forget_held(self) -> None: ...
    def deliver(self, data: bytes) -> None: ...

@final
class Asker(Matcher):
    """The side that asks: it sends small requests, and takes the answers to them.

    Args:
        end: of the connection.
        asking: the table.
        waiting, messages: what waits to be sent; before that nothing is.
        loop: the event loop.
        make: the class of calls.
        by: holds the call for which a handler of this process runs.
        call, message: the kinds of calls that it knows.
        alarm: rings at the earliest deadline.
        room: called where an answer has made room and something waits for that.
        decoded: the kind of outcome that a value is.
        most, window: calls without an answer, and bytes of their arguments, at most.
    """

    def __init__(
        self,
        end: Any,
        asking: TableFields,
        waiting: Mapping[Any, Any],
        messages: Mapping[Any, Any],
        loop: Any,
        *,
        make: type[Any],
        by: ContextVar[Any],
        call: Any,
        message: Any,
        alarm: Any,
        room: Callable[[], object],
        decoded: int,
        most: int,
        window: int,
    ) -> None: ...
    def ask(self, kind: Any, name: bytes, value: Any, timeout: float) -> Any:
        """Send a request → the call, whose waiter is a future of its outcome; None: it is no case for this,
        and nothing has happened."""

@final
class Server(Matcher):
    """The side that answers: it finds and runs the handler of a small request, and sends what is small back.

    Args:
        end: of the connection.
        serving: the table.
        handlers: by name.
        loop: the event loop.
        runs: does the rest: `returned`, `raised`; `answer`, `awaits`, `failed`, `stopped`,
            `unstarted` for a task.
        make: the class of calls.
        served: holds the call for which a handler's task runs.
        call: the kind of calls that it knows.
        context: of which each handler has a copy.
        alarm: rings at the earliest deadline.
        free: called where a task has answered and none is left.
        most, window: calls without an answer, and bytes of their arguments, at most.
    """

    def __init__(
        self,
        end: Any,
        serving: TableFields,
        handlers: Mapping[str, Any],
        loop: Any,
        *,
        runs: Any,
        make: type[Any],
        served: ContextVar[Any],
        call: Any,
        context: Context,
        alarm: Any,
        free: Callable[[], object],
        most: int,
        window: int,
    ) -> None: ...

@final
class Run:
    """The coroutine of a handler's task: it runs an async function, and answers."""

    cr_frame: Any
    cr_await: Any

    def __await__(self) -> Any: ...
    def __iter__(self) -> Any: ...
    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any: ...
    def throw(self, *error: Any) -> Any: ...
    def close(self) -> None: ...
