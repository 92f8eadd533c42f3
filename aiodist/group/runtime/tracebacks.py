"""How an exception that nobody has caught is printed: with the program's own frames.

    an error of the program       its traceback, without frames of aiodist, asyncio and uvloop
    an error of another rank      one line, which says what this rank waited for, and where
    Ctrl-C                        one line: where the program was

The frames of other libraries on the way to us are left out, too. An error of ours that a program of
torch.distributed gets as torch's is treated as ours; its cause, which says the same, is left out.

`AIODIST_TRACEBACK=full` has Python print everything. A hook that the program, a debugger or a library has set
is left alone, and what cannot be printed so is printed by Python.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from types import TracebackType

from aiodist.base.callers import Whose, short_path, whose
from aiodist.base.errors import (
    AiodistError,
    CallTimeout,
    CallUnknown,
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    PeerLost,
    Tampered,
)
from aiodist.base.sanitize import one_line

VARIABLE = "AIODIST_TRACEBACK"
_LONGEST = 2000  # characters of a line
_HIDDEN = (Whose.ours, Whose.loop)


def install() -> None:
    """Print what nobody catches as above, from now on."""
    if sys.excepthook is sys.__excepthook__ and os.environ.get(VARIABLE, "").strip().lower() != "full":
        sys.excepthook = show


def show(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Print an exception to stderr, as an excepthook."""
    try:
        text = rendered(value, trace)
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
    except Exception:  # an exception may be of any kind: one whose text cannot be made, or written, say
        sys.__excepthook__(kind, value, trace)


def rendered(value: BaseException, trace: TracebackType | None) -> str:
    """The text that is printed for an exception; it ends with a newline."""
    if isinstance(value, KeyboardInterrupt):
        return f"interrupted at {interrupted_at(value)}\n"
    errors = list(_leaves(value))
    if all(of_another_rank(_meant(error)) for error in errors) and not any(map(_says_more, (value, *errors))):
        return "".join(dict.fromkeys(_line(error) for error in errors))
    found = traceback.TracebackException(type(value), value, trace, compact=True)
    _prune(found, value)
    return "".join(found.format())


def of_another_rank(error: BaseException) -> bool:
    """Whether an error says only that another rank is in trouble."""
    if isinstance(error, PeerLost):
        return True
    if isinstance(error, CallUnknown):  # but that rank may be well, and late; or messages are altered
        return not isinstance(error, CallTimeout) and not isinstance(error.__cause__, Tampered)
    if isinstance(error, GroupAborted):
        return error.rank != error.reader
    if isinstance(error, CollectiveTimeout):
        late = {*error.missing, *error.unheard}
        return bool(late) and error.reader is not None and error.reader not in late
    if isinstance(error, CollectiveMismatch):
        return error.reader is not None and error.reader not in odd_ones(error.said)
    return False


def odd_ones(said: dict[int, str]) -> set[int]:
    """The ranks that issued something else than most did; all, where no call has most ranks."""
    counted = Counter(said.values()).most_common(2)
    if len(counted) > 1 and counted[0][1] == counted[1][1]:
        return set(said)
    return {rank for rank, text in said.items() if text != counted[0][0]}


def interrupted_at(interrupt: BaseException) -> str:
    """The innermost line of the program that Ctrl-C interrupted."""
    context = interrupt.__context__  # of asyncio; another is an error that was being handled meanwhile
    chain = context if isinstance(context, asyncio.CancelledError) else interrupt
    for frame in reversed(traceback.extract_tb(chain.__traceback__)):
        if whose(frame.filename) is Whose.program and not frame.filename.startswith(("uvloop", "<")):
            return f"{short_path(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}"
    return "before any of its lines"


def _line(error: BaseException) -> str:
    """One line for an error of another rank."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not _hidden(one.filename)]
    of_program = [one for one in frames if whose(one.filename) is Whose.program]
    place = ""
    for frame in (of_program or frames)[-1:]:
        place = f"{short_path(frame.filename)}:{frame.lineno} in {frame.name}: "
    meant = _meant(error)
    return one_line(f"aiodist: {place}{type(meant).__name__}: {meant}", _LONGEST) + "\n"


def _meant(error: BaseException) -> BaseException:
    """Our error for which one of torch's stands; else the error itself."""
    cause = error.__cause__
    stands = isinstance(cause, AiodistError) and not isinstance(error, AiodistError)
    return cause if cause and stands and str(error).startswith(f"{type(cause).__name__}: ") else error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, and of the groups in it; else the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _says_more(error: BaseException) -> bool:
    """Whether there is more to show: notes, or another exception with which the program dealt before."""
    if (meant := _meant(error)) is not error:
        return _says_more(meant) or bool(getattr(error, "__notes__", ()))
    other = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    chained = other is not None and not isinstance(other, asyncio.CancelledError)
    if isinstance(error, CallUnknown) and isinstance(other, PeerLost):  # it has said so itself
        chained = False
    return chained or bool(getattr(error, "__notes__", ()))


def _prune(found: traceback.TracebackException, value: BaseException | None) -> None:
    """Take the frames that are not the program's out, of causes and of the exceptions in a group, too."""
    frames = [frame for frame in found.stack if not _hidden(frame.filename)]
    # What goes wrong inside the library is its own matter: there the frames are all there is to see.
    inside = bool(found.stack) and whose(found.stack[-1].filename) is Whose.ours
    usual = (AiodistError, asyncio.CancelledError, TimeoutError)
    expected = value is not None and all(isinstance(_meant(error), usual) for error in _leaves(value))
    if inside and expected and any(whose(frame.filename) is Whose.program for frame in frames):
        while whose(frames[-1].filename) is not Whose.program:
            frames.pop()  # libraries on the way to us
    if value is not None and (meant := _meant(value)) is not value and not _says_more(meant):
        found.__cause__ = None
        found.__suppress_context__ = True
    if frames and (expected or not inside):
        found.stack = traceback.StackSummary.from_list(frames)
    causes = (found.__cause__, None if value is None else value.__cause__)
    contexts = (found.__context__, None if value is None else value.__context__)
    for other, its_value in (causes, contexts):
        if other is not None:
            _prune(other, its_value)
    if found.exceptions and isinstance(value, BaseExceptionGroup):
        for part, its_value in zip(found.exceptions, value.exceptions, strict=False):
            _prune(part, its_value)


def _hidden(file: str) -> bool:
    return whose(file) in _HIDDEN or file.startswith("uvloop")
