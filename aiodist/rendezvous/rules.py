"""The rules of a store that its method table cannot say, and the refusals of what breaks them."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.base.errors import name_ranks
from aiodist.base.timeouts import spoken
from aiodist.rendezvous.events import MAX_MISSING
from aiodist.rendezvous.shapes import MAX_KEY


class RefusedError(Exception):
    """A request that has no meaning, contradicts others, or waited in vain. Users see `error_of` it.

    Args:
        message: one line that says what is wrong.
        hint: what to do about it.
        kind: as in `events.Failure`.
        missing: likewise.
    """

    def __init__(
        self, message: str, hint: str = "", kind: str = "usage", missing: tuple[int, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message, self.hint, self.kind, self.missing = message, hint, kind, missing


def check_name(name: str) -> None:
    """Refuse a key, name or prefix that is to be kept, and that no client of ours would send."""
    if len(name) > MAX_KEY:
        raise RefusedError(f"a store's keys have at most {MAX_KEY} characters, this one {len(name)}")


def check_pairs(keys: Sequence[str], values: Sequence[bytes]) -> None:
    """Refuse keys and values that are not as many."""
    if len(keys) != len(values):
        raise RefusedError(f"multi_set got {len(keys)} keys and {len(values)} values")


def check_ttl(ttl: float) -> None:
    """Refuse a time that no lease can have."""
    if not ttl > 0:
        raise RefusedError(f"ttl must be a positive number of seconds, got {ttl!r}")


def added(key: str, held: bytes | None, amount: int) -> int:
    """Return the sum of what a key holds and an amount; refuses what is no number of 64 bits."""
    try:
        total = (0 if held is None else int(held)) + amount
    except ValueError:
        raise RefusedError(f"add to '{key}', which holds no number") from None
    if not -(2**63) <= total < 2**63:
        raise RefusedError(f"add to '{key}' leaves the range of a 64-bit integer")
    return total


def compared(held: bytes | None, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
    """Return whether `compare_set` sets a key that holds this, and what it answers.

    torch's meaning: an absent key matches only an empty `expected`, and answers with it otherwise.
    """
    if (held or b"") == expected:
        return True, desired
    return False, expected if held is None else held


def check_rank(rank: int, size: int) -> None:
    """Refuse a rank that is not in its world."""
    if not 0 <= rank < size:
        raise RefusedError(f"rank {rank} is not in a world of {size}")


def lease_ended(token: int) -> RefusedError:
    """The refusal of a lease that has ended."""
    return RefusedError(f"lease {token} has ended", "Its keys are gone; begin a new one", "lease")


def nobody_set(keys: Sequence[str], places: Sequence[int], timeout: float) -> RefusedError:
    """The refusal of a call that has waited in vain for those of its keys that stand at these places."""
    absent = list(dict.fromkeys(keys[place] for place in places))
    listed = ", ".join(f"'{key}'" for key in absent[:5])
    listed += f" and {len(absent) - 5} more" if len(absent) > 5 else ""
    message = f"no process set {listed} within {spoken(timeout)}"
    hint = "See whether the process that sets it runs"
    return RefusedError(message, hint, "timeout", tuple(places[:MAX_MISSING]))


def did_not_come(name: str, missing: tuple[int, ...], count: int, timeout: float) -> RefusedError:
    """The refusal of a wait at `name`: `count` ranks did not come, of whom `missing` are named."""
    message = f"{name_ranks(missing, count)} did not come to '{name}' within {spoken(timeout)}"
    hint = "See whether every process was started, with the same WORLD_SIZE and store, and what it prints"
    return RefusedError(message, hint, "timeout", missing)


def other_world(name: str, rank: int, size: int, here: list[int], count: int, world: int) -> RefusedError:
    """The refusal of a rank in a world of `size`: `count` others, of whom `here` are named, have `world`."""
    return RefusedError(
        f"rank {rank} comes to '{name}' in a world of {size}, {name_ranks(here, count)} in one of {world}",
        "Give every process the same WORLD_SIZE",
        "conflict",
    )


def rank_taken(name: str, rank: int) -> RefusedError:
    """The refusal of a second process that comes to `name` as the same rank."""
    return RefusedError(
        f"two processes are rank {rank} at '{name}'", "Give each process its own RANK", "conflict"
    )
