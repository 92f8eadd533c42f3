"""How a call ended, and the error that its caller gets for it. Pure."""

from __future__ import annotations

from typing import Any

from aiodist.base.errors import (
    A_MESSAGE,
    AiodistError,
    CallError,
    CallNotRun,
    CallTimeout,
    CallTooLate,
    CallUnknown,
    GroupClosed,
    PeerLost,
    RemoteError,
    Tampered,
)
from aiodist.base.sanitize import one_line
from aiodist.net.wire import objects
from aiodist.net.wire.calls import MAX_TEXT, Says, read_text

LOST, LATE, NOT_SENT, TOO_LATE, QUITS, UNREACHED, VALUE = range(-1, -8, -1)
"""Kinds of outcomes that no frame says: nothing more comes (body: `Why`); the deadline passed; it was not
sent, and never will be (`Why`); not in time (so many calls had no answer; 0: the process takes nothing); this
process has left the job; no connection could be made (the error). VALUE is a RESULT that is decoded."""

Why = str | ConnectionError | Tampered
"""The reason why nothing more comes from a process: words where it is lost, or `LEFT`, or '' where it said
goodbye; an error where only the connection has ended, for all that is known."""

ENCODING = -1
"""Of a message that was not sent in time: an earlier one was still being encoded."""

PASSED = "its deadline passed"
"""Why the other side has stopped a call, or not begun it; this side's clock may say so a moment later."""

LEAVES = "its process leaves the job"
"""Why nothing more runs at a process that closes its group."""

LEFT = "this process leaves the job"
"""Why this process waits for no answer any more."""

ENDS_THE_PROCESS = (SystemExit, KeyboardInterrupt)
"""What a handler may raise without an answer to its caller. All else is one."""

Outcome = tuple[int, Any]
"""Kind, and the answer's body."""


def closed() -> GroupClosed:
    """The error where this process has left the job."""
    return GroupClosed("this process has left the job", hint="Call before the world's group is closed")


def error_of(outcome: Outcome, rank: int, name: str, timeout: float) -> CallError | GroupClosed:
    """The error for an outcome that is no result.

    Args:
        rank: that was called.
        name: of what was called, for people.
        timeout: seconds that were allowed.
    """
    kind, body = outcome
    if kind == Says.RAISED:
        try:
            if objects.is_slow(body):
                raise ValueError("no name and text are so large")
            kind_name, text = objects.decode(body)
            return RemoteError(rank, name, str(kind_name)[:200], str(text)[:MAX_TEXT])
        except (AiodistError, TypeError, ValueError):
            return RemoteError(rank, name, "Exception", "what it raised cannot be read")
    if kind == QUITS:
        return closed()
    if kind == LATE:
        return _late(rank, name, timeout)
    if kind == TOO_LATE:
        return _too_late(rank, name, timeout, body)
    if kind == UNREACHED:
        unreached = CallNotRun(rank, name, f"it cannot be reached ({body})")
        unreached.__cause__ = body
        return unreached
    if kind in (NOT_SENT, LOST):
        return _ended(CallNotRun if kind == NOT_SENT else CallUnknown, rank, name, body)
    return _stopped(kind, one_line(read_text(body)), rank, name, timeout)


def _ended(kind: type[CallError], rank: int, name: str, why: Why) -> CallError:
    """The error where nothing more comes. Its cause says that the rank is lost only where that is known."""
    if isinstance(why, Tampered):
        cause = Tampered()
        error = kind(rank, name, cause.message, hint=cause.hint)
        error.__cause__ = cause
        return error
    error = kind(rank, name, str(why) or f"rank {rank} has left the job")
    if isinstance(why, ConnectionError):
        error.__cause__ = why
    elif why not in ("", LEFT):
        error.__cause__ = PeerLost([rank], why)
    return error


def not_run(rank: int, name: str, why: str) -> CallError:
    """The error for a call to a process that is lost."""
    return _ended(CallNotRun, rank, name, why)


def _too_late(rank: int, name: str, timeout: float, under_way: int) -> CallTooLate:
    why, hint = f"it could not be sent within {timeout:g} s", "The rank is busy, or frozen"
    if under_way > 0:
        why = f"{under_way} earlier calls of this process to it have no answer; {why}"
        hint = "Give calls a shorter timeout, ask fewer at once, or see what its handlers wait for"
    if under_way == ENCODING:
        why, hint = f"an earlier message was still being encoded; {why}", "Send large data by pg.send"
    return CallTooLate(rank, name, why, hint=hint)


def _stopped(kind: int, why: str, rank: int, name: str, timeout: float) -> CallError:
    """The error for a call that the other side has stopped, or not begun."""
    if kind == Says.DROPPED:
        if why == PASSED:
            return _late(rank, name, timeout)
        return CallUnknown(rank, name, f"it was stopped there: {why}")
    if why == PASSED:
        cause = "the mailbox was full" if name == A_MESSAGE else "it waited for its turn there"
        return CallTooLate(rank, name, f"{cause} for {timeout:g} s")
    return CallNotRun(rank, name, why)


def _late(rank: int, name: str, timeout: float) -> CallTimeout:
    hint = "Perhaps the mailbox is full" if name == A_MESSAGE else ""
    return CallTimeout(rank, name, f"no answer within {timeout:g} s", hint=hint)


def described(error: BaseException) -> tuple[str, str]:
    """The name of an exception's type, and its text, whatever the exception's own methods do."""
    kind = type(error)
    try:
        module = kind.__module__
        name = _plain(kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}", 200)
    except ENDS_THE_PROCESS:
        raise
    except BaseException:
        name = "Exception"
    try:
        return name, _plain(str(error), MAX_TEXT)
    except ENDS_THE_PROCESS:
        raise
    except BaseException:
        return name, "(its text cannot be made)"


def _plain(text: str, most: int) -> str:
    return str.encode(text[:most], "utf-8", "replace").decode()


def raised(error: BaseException) -> bytes:
    """The body that tells of an exception: its type's name and its text."""
    return objects.encode(list(described(error)))


def unreadable(error: BaseException) -> bytes:
    """The body that tells why a call has not run: what was raised as its arguments were decoded, or made."""
    return f"its arguments cannot be read: {': '.join(described(error))}".encode()


def too_large(what: str, nbytes: int, most: int) -> str:
    """The words for something that is larger than it may be."""
    return f"{what} takes {nbytes} bytes; at most {most} are allowed"
