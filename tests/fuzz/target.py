"""What a fuzzer needs of a parser: valid input to start from, and one call that takes any bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from aiodist.base.errors import AiodistError
from tests.fuzz.mutate import Mutator

Run = Callable[[bytes], str]
"""Parse one input. → '' where it was accepted, a word where it was refused without an error. Raises one of
the target's errors where that is how it refuses; anything else that comes out is a bug."""


@dataclass(frozen=True)
class Target:
    """One place where bytes of a peer or an unauthenticated peer are parsed.

    Args:
        name: for the command line.
        what: what is parsed, in a few words.
        seeds: valid inputs, made by the real encoders.
        open: what `Run` needs, as long as it is open; inputs must not depend on those before them.
        errors: what may come out of `Run`.
        mutators: the ways to change an input; one is drawn for each.
        share: of all inputs, beside the other targets' shares.
    """

    name: str
    what: str
    seeds: Callable[[], list[bytes]]
    open: Callable[[], AbstractContextManager[Run]]
    errors: tuple[type[AiodistError], ...]
    mutators: tuple[Mutator, ...]
    share: float = 1.0


def words_are_fit(error: AiodistError) -> bool:
    """Whether an error can be shown: one line of bounded length that nobody can paint a terminal with."""
    return all(part.isprintable() and len(part) <= 1000 for part in (error.message, error.hint))
