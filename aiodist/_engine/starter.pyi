"""The way into a collective on plain arrays: a prepared call is looked up, takes its number, and begins.

What calls of one kind, dtype, op and root share is checked once, in Python (`prepare`): a `Prepared`. What
follows from the shape is computed here, and the last shapes are remembered. Such calls are started here, on
numbers and strided arrays by copies. All else is no case for this, and nothing has happened: the general way
checks it and says what is wrong.
"""

from collections.abc import Callable
from typing import Any, Self, final

import numpy as np

from aiodist._engine.slots import Slots

FINGERPRINT: str
"""Stands for the sources of which the extension was made."""

@final
class Prepared:
    """What calls of one kind, dtype, op and root share, whatever their shapes.

    Args:
        call: one of them; its number and shape do not matter. A barrier's is the only one without elements.
        op, root: what callers pass.
        size: ranks of the group.
        cut: the first array has a part for each member, joined along its first axis.
        splits: the second array is one of these parts. stacks: it has a part like the first array for each
            member, stacked or joined along the first axis. Else it is like the first.
        one_tensor: one array is read on the root and written elsewhere.
        deals: what ranks agree on is got, and the second array is given, on the root.
        gives, gets: what this rank does.
        in_place: without a second array, the first is overwritten; else a new one is made.

    Attributes:
        call: as given.
    """

    call: Any
    def __new__(
        cls,
        call: Any,
        op: Any,
        root: Any,
        size: int,
        *,
        cut: bool,
        splits: bool,
        stacks: bool,
        one_tensor: bool,
        deals: bool,
        gives: bool,
        gets: bool,
        in_place: bool,
    ) -> Self: ...

@final
class Sized:
    """A prepared call on arrays of one shape. Only the starter makes such."""

@final
class Starter:
    """The starter of one group. It runs in the loop's thread.

    Args:
        prepare: given kind, dtype, op and root, what such calls share; None where there is no case.
        span: given one of these calls, its plan, and the range of numbers of elements for which calls of
            other shapes have one like it. False in the place of a plan: no case; None: of a group of one.
        issuer: what the group's Works have in common.
        numbers: of its operations.
        owner: the group: `board`, `staging`, `watch`, `note_all`.
        slots: its slots; None: of a group of one.
        work: makes the handle.
        op_type: of ops.
        of_torch: gives the memory of a tensor as an array, or None.
        of_number: gives an array of a number, and what makes a number of one again; None of anything else.
        staged: given an array that is strided, and whether it is written, a contiguous copy and what copies
            that back and gives the array; None: it is refused.
        seconds: makes seconds of a timeout, or refuses it.

    Attributes:
        count: shapes of calls that are remembered, 1024 at most.
    """

    count: int

    def __new__(
        cls,
        prepare: Callable[[int, np.dtype[Any] | None, Any, int], Prepared | None],
        span: Callable[[Any], tuple[Any, range]],
        issuer: Any,
        numbers: Any,
        owner: Any,
        slots: Slots | None,
        work: Any,
        op_type: type,
        of_torch: Callable[[Any], Any],
        of_number: Callable[[Any], tuple[Any, Callable[[Any], Any]] | None],
        staged: Callable[[Any, bool], tuple[Any, Callable[[Any], Any] | None] | None],
        seconds: Callable[[Any], float],
    ) -> Self: ...
    def start(
        self,
        kind: int,
        lead: Any,
        other: Any,
        held: bool,
        op: Any = 0,
        root: Any = -1,
        timeout: Any = None,
        depth: int = 1,
        convert: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Take a number and start, if this is a case for it, and give the Work; else None.

        Args:
            kind: a collective; `OBJECT_KINDS` more: the frames of one of objects.
            lead: the tensor whose dtype and shape are agreed on, unchecked: the source, but for scatter.
            other: the other tensor or None, unchecked.
            held: the caller passed `async_op=True`.
            op, root: what the caller passed, unchecked.
            timeout: what the caller passed, unchecked: one that is none is refused here.
            depth: how many calls the program's line is above the caller.
            convert: makes what the Work gives of a contiguous array that was got. What it raises breaks the
                group.
        """

    def note_all(self) -> None:
        """Enter in flight what is pending."""

    def call(self, seq: int) -> Any:
        """The call that was started here under a number, unless that is long ago."""

    def stop(self) -> None:
        """Start nothing any more."""

    def close(self) -> None:
        """Let go of the group's memory, also where users still hold works."""
