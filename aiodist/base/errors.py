"""Every error that aiodist raises, and what to do about each.

    AiodistError
    ├── UsageError (ValueError)          you asked for something that has no meaning; nothing was sent
    ├── RendezvousError                  the processes could not meet
    │   ├── RendezvousTimeout            … in time; names who is missing
    │   ├── AuthenticationError          … because one is not of the job or speaks another version
    │   ├── StoreReplaced                … any more: the store is another one, or knows less than it did
    │   ├── StoreFull                    the store holds as much as it may
    │   └── LeaseLost                    a lease ended before its holder did
    ├── GroupClosed                      you closed the group
    │   └── PeerClosed                   a rank closed it: nothing comes from there, and nothing is taken
    ├── GroupBroken                      the world broke the group
    │   ├── PeerLost                     a process died or became unreachable; names its ranks
    │   ├── CollectiveTimeout (TimeoutError)   an operation ran out of time; names who had not arrived
    │   ├── CollectiveMismatch           ranks issued different operations; says who said what
    │   ├── GroupAborted                 a member called abort(); carries the reason
    │   ├── Tampered (WireError)         somebody between two processes altered what one sent the other
    │   ├── Evicted                      the others went on without this process
    │   └── QuorumLost                   too few are left to go on
    ├── CallError                        a call to another rank's handler has no result
    │   ├── CallNotRun                   … it has not run, and never will: call again, or another rank
    │   │   └── CallTooLate (TimeoutError)   … since its time was over before it began
    │   ├── CallUnknown                  … it may have run, or may run in part; nobody knows
    │   │   └── CallTimeout (TimeoutError)   … when its time was over
    │   └── RemoteError                  … the handler raised; carries the name of the type, and the text
    ├── NonFiniteValues (FloatingPointError)   ranks gave infinities or NaN, which cannot be quantised
    ├── CheckpointError                  a checkpoint is damaged, of another model, or could not be written
    │   └── StateLost                    the optimiser's state died with its ranks; go on from a checkpoint
    ├── ForgottenAwait                   operations were never awaited; says which, and at which lines
    ├── WireError                        bytes that are not this protocol
    │   └── UnreadableMessage            a message came that cannot be read here; says whose it was
    └── BackendUnavailable               the backend's library or hardware is not here

Whose fault it was is in the type: `UsageError` and `GroupClosed` are yours, `GroupBroken` is the
world's. Every error carries `hint`, one line that says what to do next; it is part of `str(error)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aiodist.base.sanitize import one_line


def name_ranks(ranks: Sequence[int], total: int = 0) -> str:
    """'rank 3', 'ranks 1, 2 and 5'; long lists are cut after ten. `total` counts those not given, too."""
    listed = sorted(ranks)
    total = max(total, len(listed))
    if total == 1:
        return f"rank {listed[0]}"
    if total > 10:
        return f"ranks {', '.join(map(str, listed[:10]))} and {total - 10} more"
    return f"ranks {', '.join(map(str, listed[:-1]))} and {listed[-1]}"


def shown(value: object) -> str:
    """A value that was passed, for an error, in one short line: plain ones as they are, of others the type.

    The text of a tensor has many lines, and making it may fail.
    """
    kind = type(value)
    plain = kind in _PLAIN or (
        kind in (list, tuple) and len(value) <= 20 and all(type(item) in _PLAIN for item in value)  # type: ignore[arg-type,attr-defined]
    )
    if plain:
        try:
            text = repr(value)
        except ValueError:  # an integer of more digits than Python prints
            text = f"an {kind.__name__} of thousands of digits"
        return text if len(text) <= 100 else f"{text[:97]}…"
    return f"an object of type {kind.__name__}"


_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


class AiodistError(Exception):
    """The base of all errors of aiodist.

    Args:
        message: one line that says what happened.
        hint: one line that says what to do next; shown after the message.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors differ, and errors cross process borders: what an error holds is what it is.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[AiodistError], args: tuple[Any, ...], state: dict[str, Any]) -> AiodistError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(AiodistError, ValueError):
    """The call has no meaning as it is written. Raised before anything is sent; the group is as before."""


class ForgottenAwait(AiodistError):
    """Operations were neither awaited nor held nor drained: values read from their tensors may be wrong.

    Raised when the group is closed. If another error ends the group, that error carries this text as a note.

    Attributes:
        origins: (operation, file, line, how often) of each line that forgot; the file is '' where no line of
            the program issued it.
    """

    def __init__(self, origins: Sequence[tuple[str, str, int, int]]) -> None:
        self.origins = tuple(origins)
        super().__init__(
            f"never awaited: {'; '.join(_forgotten(*origin) for origin in origins[:10])}"
            + (f"; and {len(origins) - 10} more lines" if len(origins) > 10 else ""),
            hint="Write `await` before the call, or async_op=True to hold its handle",
        )


def _forgotten(op: str, file: str, line: int, count: int) -> str:
    times = "" if count == 1 else f" ({count} times)"
    return f"{op} at {file}:{line}{times}" if file else f"{op}, issued by no line of the program{times}"


class RendezvousError(AiodistError):
    """The processes could not meet."""


class RendezvousTimeout(RendezvousError):
    """Some of the processes did not come in time.

    Attributes:
        missing: the ranks that never arrived, or the keys that nobody set in a store; of very many the first
            256 (empty where that cannot be known).
        missing_ranks: those of them that are ranks.
    """

    def __init__(self, message: str, *, missing: Sequence[int | str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.missing = tuple(missing)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Those of `missing` that are ranks."""
        return tuple(one for one in self.missing if isinstance(one, int))


class AuthenticationError(RendezvousError):
    """The other side does not belong to this job, or speaks another protocol version or byte order."""


class StoreReplaced(RendezvousError):
    """The store that answers is another one than before, or has gone back to older data."""


class StoreFull(RendezvousError):
    """The store is full; the call that would have made it larger had no effect."""


class LeaseLost(RendezvousError):
    """The lease has ended, and its keys are gone: the store took its holder for dead."""


class GroupClosed(AiodistError):
    """The group was closed: by this process, or, where it is a `PeerClosed`, by a peer."""


class PeerClosed(GroupClosed):
    """One rank, or every other, has closed the group: it sends nothing more, all that it sent is here, and it
    receives nothing more.

    Only a receive that waits for it, or a send to it, ends with this error, and the group is not broken.

    Attributes:
        ranks: global ranks.
    """

    def __init__(self, ranks: Sequence[int], *, sent: bool = False) -> None:
        closed = "has closed its group" if len(ranks) == 1 else "have closed their groups"
        if sent:
            said = "what is sent to it is not received"
            hint = "Have it receive all that is sent to it before it closes, and send it nothing afterwards"
        else:
            said, hint = "nothing more comes from there", ""
        super().__init__(f"{name_ranks(ranks)} {closed}: {said}", hint=hint)
        self.ranks = tuple(sorted(ranks))


class GroupBroken(AiodistError):
    """The group is broken: it carries out no more operations. The call that reports it need not be the cause.

    The tensors of a failed in-place operation are undefined. A Work that fails with this has stopped
    touching its buffers.

    Attributes:
        op: the operation that reports it ('all_reduce'), or '' where the group broke between operations.
        seq: the operation's number in its group, or None.
        group: the group's name.
        epoch: the group's epoch; ranks are those of this epoch.
        reader: global rank of the process that reports it; None where that is not known.
    """

    epoch: int = 0
    reader: int | None = None

    def __init__(
        self, message: str, *, op: str = "", seq: int | None = None, group: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.op = op
        self.seq = seq
        self.group = group

    def during(self, op: str, seq: int | None, group: str, epoch: int = 0) -> GroupBroken:
        """A copy of this error for one operation, so that each Work says which one it was."""
        copy = self.__class__.__new__(self.__class__)
        copy.__dict__.update(self.__dict__)
        Exception.__init__(copy, self.message)
        copy.op, copy.seq, copy.group, copy.epoch = op, seq, group, epoch
        copy.__cause__ = self.__cause__
        return copy

    def __str__(self) -> str:
        where = ""
        if self.op:
            number = "" if self.seq is None else f" #{self.seq}"
            where = f" (in {self.op}{number} of group '{self.group}')"
        text = f"{self.message}{where}"
        return f"{text}. {self.hint}" if self.hint else text


class PeerLost(GroupBroken):
    """A member of the group died or became unreachable.

    Attributes:
        ranks: global ranks of the lost members.
        cause: how it was noticed ('process 4711 ended', 'connection ended without goodbye', …).
        silence: seconds between its last sign of life and the moment when its loss was noticed. Detection
            took at most this long. None if it is not known.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        cause: str,
        *,
        op: str = "",
        seq: int | None = None,
        group: str = "",
        hint: str = "Look at that rank's output first; its peers stopped because of it",
        silence: float | None = None,
    ) -> None:
        after = "" if silence is None else f", noticed {_span(silence)} after its last sign of life"
        super().__init__(f"lost {name_ranks(ranks)}: {cause}{after}", op=op, seq=seq, group=group, hint=hint)
        self.ranks = tuple(sorted(ranks))
        self.cause = cause
        self.silence = silence


class CollectiveTimeout(GroupBroken, TimeoutError):
    """An operation did not complete within its timeout.

    Attributes:
        missing: global ranks that had not arrived at the operation, as far as is known.
        unheard: global ranks that did not answer, for example because their event loops were blocked.
        timeout: seconds that were allowed.
        trouble: what else is known about members for which the others wait, in words.

    These are the same on all members. A rank that is named in them reads which rank waited for it instead.
    """

    def __init__(
        self,
        timeout: float,
        missing: Sequence[int] = (),
        unheard: Sequence[int] = (),
        trouble: str = "",
        *,
        op: str = "",
        seq: int | None = None,
        group: str = "",
        hint: str = "",
    ) -> None:
        known = _known(missing, unheard, trouble) or ["all ranks had arrived"]
        message = f"the operation did not complete within {timeout:g} s: {'; '.join(known)}"
        if not hint:
            at_fault = missing or unheard or trouble not in ("", "all ranks had arrived")
            hint = _SLOW_RANK if at_fault else _SLOW_PATH
        super().__init__(message, op=op, seq=seq, group=group, hint=hint)
        self.missing = tuple(sorted(missing))
        self.unheard = tuple(sorted(unheard))
        self.trouble = trouble
        self.timeout = timeout

    def as_read_by(self, rank: int, by: int) -> CollectiveTimeout:
        """The error for a rank that is told of it by another, whose operation ran out of time.

        What it says of the reader is about that operation, not about the one that the reader waits for.
        """
        if rank not in self.missing + self.unheard:
            return self
        missing, unheard = ([one for one in named if one != rank] for named in (self.missing, self.unheard))
        copy = CollectiveTimeout(self.timeout, self.missing, self.unheard, self.trouble, hint=_OWN)
        first = f"rank {by} gave up after {self.timeout:g} s of waiting for rank {rank}, this process"
        copy.message = "; ".join([first, *_known(missing, unheard, self.trouble)])
        copy.args = (copy.message,)
        return copy

    def during(self, op: str, seq: int | None, group: str, epoch: int = 0) -> GroupBroken:
        """As `GroupBroken.during`. A receive that others waited for has itself waited for a message."""
        copy = super().during(op, seq, group, epoch)
        if copy.hint == _OWN and op.startswith("recv"):
            copy.hint = _NOTHING_CAME
        return copy


_SLOW_RANK = "Raise timeout= if that rank is only slow; else see what it does instead"
_SLOW_PATH = "Raise timeout= if it is only slow; `aiodist bench` measures what is between the ranks"
_OWN = "See what this rank did meanwhile: long steps keep its event loop from turning"
_NOTHING_CAME = (
    "Nothing that fits has come: compare the sender's calls with this receive: its source, its tag, and "
    "whether it takes a tensor or an object"
)


def _known(missing: Sequence[int], unheard: Sequence[int], trouble: str) -> list[str]:
    known = [f"{name_ranks(missing)} had not arrived"] if missing else []
    known += [f"{name_ranks(unheard)} did not answer"] if unheard else []
    return [*known, trouble] if trouble else known


_PLACED = re.compile(r"(.*\)) at (.+:\d+)")
"""A call in words, and the line that made it."""


class CollectiveMismatch(GroupBroken):
    """Ranks issued different operations under the same number.

    Args:
        said: what each rank (global) issued, in words; ' at train.py:12' may follow.

    Attributes:
        said: what each rank issued: 'all_gather_object()'.
        places: the line that did, as far as is known: 'train.py:12'.
    """

    def __init__(
        self,
        said: Mapping[int, str],
        *,
        op: str = "",
        seq: int | None = None,
        group: str = "",
        hint: str = "Every member must issue the same operations in the same order",
    ) -> None:
        alike: dict[str, list[int]] = {}
        for rank in sorted(said):
            alike.setdefault(said[rank], []).append(rank)
        parts = "; ".join(f"{name_ranks(ranks)}: {text}" for text, ranks in alike.items())
        super().__init__(f"ranks disagree: {parts}", op=op, seq=seq, group=group, hint=hint)
        self.said, self.places = dict(said), {}
        for rank, text in said.items():
            placed = _PLACED.fullmatch(text)
            if placed is not None:
                self.said[rank], self.places[rank] = placed.groups()

    def statement(self, rank: int) -> str:
        """The call that a rank issued, and its line."""
        place = self.places.get(rank)
        return self.said[rank] if place is None else f"{self.said[rank]} at {place}"


class GroupAborted(GroupBroken):
    """A member called `abort`, or left `async with` by an exception.

    Attributes:
        rank: the global rank that aborted.
        reason: what it gave as the reason.
    """

    def __init__(
        self,
        rank: int,
        reason: str,
        *,
        op: str = "",
        seq: int | None = None,
        group: str = "",
        hint: str = "The cause is in that rank's output",
    ) -> None:
        super().__init__(f"rank {rank} aborted the group: {reason}", op=op, seq=seq, group=group, hint=hint)
        self.rank = rank
        self.reason = reason


class Evicted(GroupBroken):
    """The other members went on without this process. It may come back as a newcomer: `dist.join`."""


class QuorumLost(GroupBroken):
    """Too few members are left, or can be reached, to form the next epoch: this process must not go on."""


A_MESSAGE = "a message"
"""The name that an error of a message has in place of a handler's."""


class CallError(AiodistError):
    """A call to a handler of another rank, or a message to it, did not end with a result.

    Attributes:
        rank: that was called, in the group on which it was called.
        name: of the handler; "a message" for a message.
        cause: why, in words.
    """

    def __init__(self, rank: int, name: str, cause: str, *, hint: str = "") -> None:
        super().__init__(self._words(rank, name, cause), hint=hint)
        self.rank = rank
        self.name = name
        self.cause = cause

    @staticmethod
    def _words(rank: int, name: str, cause: str) -> str:
        if name == A_MESSAGE:
            return f"sending a message to rank {rank}: {cause}"
        return f"calling {name} on rank {rank}: {cause}"


class CallNotRun(CallError):
    """The call has not run, and never will: there is no such handler, the arguments do not fit, its time was
    over before it began, or the rank is lost or cannot be reached. You may call again, there or elsewhere."""


class CallTooLate(CallNotRun, TimeoutError):
    """The call's time was over before it began: it could not be sent, or waited at the rank for its turn. It
    has not run. Of a message: the mailbox was full."""


class CallUnknown(CallError):
    """The call was sent, and its outcome is not known: it may have run, or run in part. The rank died, left
    or stopped it. Repeat the call only if it may run twice."""


class CallTimeout(CallUnknown, TimeoutError):
    """A call was sent and not answered in time: it may have run, or run in part. It is stopped there."""


class RemoteError(CallError):
    """The handler raised an error. Only the name of its class and its text travel, not the error itself.

    Attributes:
        type_name: of the exception's class: "KeyError", "package.module.Class".
        text: its text there.
    """

    def __init__(self, rank: int, name: str, type_name: str, text: str) -> None:
        shown = one_line(type_name, 200), one_line(text)
        super().__init__(rank, name, f"it raised {': '.join(filter(None, shown))}")
        self.type_name = type_name
        self.text = text


class NonFiniteValues(AiodistError, FloatingPointError):
    """Values that are not finite were to be quantised. All ranks raise it alike; the tensors are as they
    were, and the group goes on.

    Attributes:
        rank: the first that gave such a value; None: all gave finite ones, and their sum is none.
        blocks: how many blocks of the result are concerned.
    """

    def __init__(
        self,
        message: str = "a rank gave values that are not finite",
        *,
        rank: int | None = None,
        blocks: int = 0,
        hint: str = "Skip this step, or lower the learning rate",
    ) -> None:
        super().__init__(message, hint=hint)
        self.rank, self.blocks = rank, blocks


class CheckpointError(AiodistError):
    """A checkpoint is damaged, not there, of another model, or could not be written."""


class StateLost(CheckpointError):
    """The optimiser's state of some elements died with the members that had it. All survivors raise it."""


class WireError(AiodistError):
    """Bytes arrived that are not this protocol."""


class UnreadableMessage(WireError):
    """A message came that cannot be read here. It is taken; the next `anext` gives the one behind it.

    Attributes:
        sender: rank of its sender, in the group whose `messages()` raised this; None where it is no member.
    """

    def __init__(self, message: str, *, sender: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sender = sender


class Tampered(GroupBroken, WireError):
    """Data between two processes was altered on the path. Neither of them is lost."""

    def __init__(
        self,
        message: str = "the data were altered on the network path",
        *,
        op: str = "",
        seq: int | None = None,
        group: str = "",
        hint: str = "Check the network between the two for an attacker, or for a proxy that rewrites data",
    ) -> None:
        super().__init__(message, op=op, seq=seq, group=group, hint=hint)


class BackendUnavailable(AiodistError):
    """The backend's library or hardware is not on this machine; the hint names the one thing to install."""


for _error in list(globals().values()):
    if isinstance(_error, type) and issubclass(_error, AiodistError):
        _error.__module__ = "aiodist"  # where programs import it from: a traceback says aiodist.PeerLost
del _error
