"""etcd's messages in JSON, as its gateway takes them: conditions, operations, transactions, answers.

Pure. Keys and values are bytes here and base64 there; numbers of 64 bits are strings there.
"""

from __future__ import annotations

import contextlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiodist.base.errors import WireError
from aiodist.base.sanitize import one_line
from aiodist.rendezvous.etcd.refusals import Compacted, EtcdAway

Json = dict[str, Any]

MAX_OPERATIONS = 60
"""Operations in one transaction; etcd takes 128 by default, and as many inside each one that is nested."""


class Item(NamedTuple):
    """A key, what it holds, and the revision at which that was written."""

    key: bytes
    value: bytes
    revision: int


@dataclass(slots=True)
class Range:
    """Result of a read.

    Attributes:
        items: in the order of their keys.
        count: how many keys there are, also where they were only counted.
    """

    items: list[Item]
    count: int

    @property
    def item(self) -> Item | None:
        """The one key that was asked for, if it is there."""
        return self.items[0] if self.items else None


@dataclass(slots=True)
class TransactionOutcome:
    """The answer to a transaction.

    Attributes:
        succeeded: whether its conditions held.
        revision: of the store, after it.
        ranges: what its reads found, in their order.
        again: whether etcd may have been asked more than once.
        note: what an earlier attempt noted, where that was the one that made a change (see `ledger`).
    """

    succeeded: bool
    revision: int
    ranges: list[Range]
    again: bool = False
    note: bytes | None = None


def after(prefix: bytes) -> bytes:
    """The first key beyond all that begin with a prefix."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"


# Conditions.


def unchanged(key: bytes, revision: int) -> Json:
    """The condition that the key was last written at this revision; 0: it is absent."""
    return {"key": _64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def none_in(start: bytes, end: bytes) -> Json:
    """The condition that no key is in [start, end)."""
    return {**unchanged(start, 0), "range_end": _64(end)}


def holds(key: bytes, value: bytes) -> Json:
    """The condition that the key is there and holds this."""
    return {"key": _64(key), "target": "VALUE", "result": "EQUAL", "value": _64(value)}


# Operations.


def put(key: bytes, value: bytes, lease: int | None) -> Json:
    """Write a key; None leaves the lease that it has."""
    if lease is None:
        return {"request_put": {"key": _64(key), "value": _64(value), "ignore_lease": True}}
    return {"request_put": {"key": _64(key), "value": _64(value), "lease": str(lease)}}


def get(key: bytes) -> Json:
    """Read a key."""
    return {"request_range": {"key": _64(key)}}


def get_all(prefix: bytes, *, names_only: bool = False, limit: int = 0) -> Json:
    """Read all keys that begin with a prefix, or the first `limit`."""
    request = {"key": _64(prefix), "range_end": _64(after(prefix)), "limit": str(limit)}
    return {"request_range": {**request, "keys_only": names_only}}


def count_all(prefix: bytes) -> Json:
    """Count the keys that begin with a prefix."""
    return {"request_range": {"key": _64(prefix), "range_end": _64(after(prefix)), "count_only": True}}


def delete(key: bytes) -> Json:
    """Delete a key."""
    return {"request_delete_range": {"key": _64(key)}}


def delete_all(prefix: bytes) -> Json:
    """Delete all keys that begin with a prefix."""
    return {"request_delete_range": {"key": _64(prefix), "range_end": _64(after(prefix))}}


def txn(conditions: list[Json], success: Sequence[Json], failure: Sequence[Json] = ()) -> Json:
    """A transaction: if all conditions hold do one, else the other; at once. Long lists are nested."""
    return {"compare": conditions, "success": _nested(success), "failure": _nested(failure)}


def _nested(operations: Sequence[Json]) -> list[Json]:
    if len(operations) <= MAX_OPERATIONS:
        return list(operations)
    cuts = range(0, len(operations), MAX_OPERATIONS)
    return [{"request_txn": {"success": list(operations[cut : cut + MAX_OPERATIONS])}} for cut in cuts]


def watch(start: bytes, end: bytes, revision: int) -> Json:
    """The body of a watch of [start, end), or of one key where `end` is empty.

    Args:
        revision: of the first change that is wanted; 0 means what comes next.
    """
    request: Json = {"key": _64(start), "start_revision": str(revision), "progress_notify": True}
    if end:
        request["range_end"] = _64(end)
    return {"create_request": request}


# Answers.


def outcome(answer: Json, again: bool = False) -> TransactionOutcome:
    """Read the answer to a transaction; `WireError` if it is none."""
    with _reading():
        found = TransactionOutcome(
            bool(answer.get("succeeded")), int(answer["header"]["revision"]), [], again
        )
        _collect(answer, found)
        return found


def time_left(answer: Json) -> int:
    """Seconds that a lease has, of the answer to its renewal; `WireError` if it is none."""
    with _reading():
        return int(answer.get("TTL", 0))


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WireError("what answers in etcd's place says nothing that can be read") from None


def _collect(answer: Json, found: TransactionOutcome) -> None:
    for response in answer.get("responses", ()):
        if (part := response.get("response_range")) is not None:
            items = [item(kv) for kv in part.get("kvs", ())]
            found.ranges.append(Range(items, int(part.get("count", 0))))
        elif (part := response.get("response_txn")) is not None:
            _collect(part, found)


def item(kv: Json) -> Item:
    """One key of an answer."""
    return Item(b64decode(kv["key"]), b64decode(kv.get("value", "")), int(kv["mod_revision"]))


@dataclass(slots=True)
class WatchNews:
    """One message of a watch.

    Attributes:
        changes: what was written, or None for what was deleted; in order.
        progress: all changes up to this revision have been told; 0 where that is not said.
        began: the watch is on: whatever happens from now on is told.
    """

    changes: list[tuple[Item, bool]]
    progress: int = 0
    began: bool = False


def news(result: Json) -> WatchNews:
    """Read a message of a watch; the flag of a change is whether the key is there after it.

    Raises:
        WireError: it is none.
        EtcdAway: etcd ended the watch.
    """
    with _reading():
        if result.get("canceled"):
            why = one_line(str(result.get("cancel_reason") or "the watch was ended"), 200)
            raise Compacted(why) if int(result.get("compact_revision", 0)) > 0 else EtcdAway(why)
        events = result.get("events", ())
        changes = [(item(event["kv"]), event.get("type", "PUT") == "PUT") for event in events]
        if changes:
            return WatchNews(changes, progress=changes[-1][0].revision)
        if result.get("created"):
            return WatchNews([], began=True)
        return WatchNews([], progress=int(result["header"]["revision"]))


def _64(data: bytes) -> str:
    return b64encode(data).decode()
