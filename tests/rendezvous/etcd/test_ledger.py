"""Changes that happen once: against keys in memory, and a way there that loses answers and requests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import RendezvousTimeout
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.ledger import ChangeLedger, Decision, Mark
from aiodist.rendezvous.etcd.words import Item, Json, Range, TransactionOutcome
from aiodist.rendezvous.rules import RefusedError
from aiodist.testing.clock import run_virtual

LEASE, OTHER = 7, 8
NEVER = float("inf")
KEY = b"/job/key"


class Etcd:
    """Keys in memory, changed by transactions as etcd's gateway takes them, one at a time.

    Attributes:
        keys: what each holds, the revision at which it was written, and its lease.
        history: every change of a key: (key, before, after), None where it is absent.
        asked: transactions that arrived.
        late: transactions that are still under way.
    """

    def __init__(self) -> None:
        self.keys: dict[bytes, tuple[bytes, int, int]] = {}
        self.history: list[tuple[bytes, bytes | None, bytes | None]] = []
        self.revision = 1
        self.asked = 0
        self.late: deque[Json] = deque()
        self._next = 0

    def txn(self, body: Json) -> TransactionOutcome:
        """Carry out a transaction."""
        self.asked += 1
        holds = all(self._unchanged(condition) for condition in body["compare"])
        operations = _flat(body["success" if holds else "failure"])
        written = [b64decode(each["key"]) for name, each in operations if name != "request_range"]
        assert len(written) == len(set(written)), "etcd refuses a key that is changed twice"
        self._next = self.revision + 1
        responses = [self._do(name, each) for name, each in operations]
        answer = {
            "header": {"revision": str(self.revision)},
            "responses": responses,
            **({"succeeded": True} if holds else {}),
        }
        return words.outcome(answer)

    def _unchanged(self, condition: Json) -> bool:
        assert (condition["target"], condition["result"]) == ("MOD", "EQUAL")
        return self.keys.get(b64decode(condition["key"]), (b"", 0, 0))[1] == int(condition["mod_revision"])

    def _do(self, name: str, operation: Json) -> Json:
        key = b64decode(operation["key"])
        held = self.keys.get(key)
        if name == "request_range":
            kvs = [] if held is None else [_kv(Item(key, held[0], held[1]))]
            return {"response_range": {"kvs": kvs, "count": str(len(kvs))}}
        if name == "request_put":
            assert held is not None or "lease" in operation, "etcd keeps no lease of a key that is not there"
            value = b64decode(operation["value"])
            lease = int(operation["lease"]) if "lease" in operation else (held or (b"", 0, 0))[2]
            self.keys[key] = value, self._next, lease
            self._changed(key, held, value)
            return {"response_put": {}}
        assert name == "request_delete_range"
        if self.keys.pop(key, None) is not None:
            self._changed(key, held, None)
        return {"response_delete_range": {}}

    def _changed(self, key: bytes, held: tuple[bytes, int, int] | None, value: bytes | None) -> None:
        self.revision = self._next
        self.history.append((key, None if held is None else held[0], value))

    def value(self, key: bytes) -> bytes | None:
        """What a key holds."""
        return self.keys[key][0] if key in self.keys else None

    def marks(self) -> int:
        """How many marks there are."""
        return sum(b"/done/" in key for key in self.keys)

    def deliver(self) -> None:
        """What was under way all the time arrives; nobody hears the answer."""
        while self.late:
            self.txn(self.late.popleft())


class Way(Enum):
    """How a request fares. The gateway asks again where it hears nothing, until its time is over."""

    arrives = auto()
    answer_lost = auto()
    lost = auto()
    late = auto()  # the first copy arrives much later, the second at once
    silent = auto()  # it arrives, and no answer to any copy does
    away = auto()  # it never arrives
    away_late = auto()  # likewise as far as the caller can see


class Run:
    """One process's part in the run: what the ledger uses of it."""

    def __init__(self, etcd: Etcd, client: bytes = b"me", ways: deque[Way] | None = None) -> None:
        self.base = b"/job/run/"
        self.client = client
        self.lease = LEASE
        self.ways = ways if ways is not None else deque()
        self._etcd = etcd

    async def txn(
        self,
        conditions: list[Json],
        success: Sequence[Json],
        failure: Sequence[Json] = (),
        *,
        deadline: float,
    ) -> TransactionOutcome:
        """As `aiodist.rendezvous.etcd.run.EtcdRun.txn`."""
        etcd, body = self._etcd, words.txn(conditions, success, failure)
        way = self.ways.popleft() if self.ways else Way.arrives
        await asyncio.sleep(0)
        if way in (Way.late, Way.away_late):
            etcd.late.append(body)
        if way in (Way.answer_lost, Way.silent):
            etcd.txn(body)
        await asyncio.sleep(0)  # others come in between
        if way in (Way.silent, Way.away, Way.away_late):
            raise RendezvousTimeout("cannot reach etcd", hint="none")
        found = etcd.txn(body)
        found.again = way is not Way.arrives
        return found

    async def read(self, *operations: Json, deadline: float) -> list[Range]:
        """As `aiodist.rendezvous.etcd.run.EtcdRun.read`."""
        return (await self.txn([], operations, deadline=deadline)).ranges


def _flat(operations: list[Json]) -> list[tuple[str, Json]]:
    """Operations by name, those of nested transactions included."""
    assert len(operations) <= 128, "etcd refuses longer ones"
    found: list[tuple[str, Json]] = []
    for operation in operations:
        [(name, inner)] = operation.items()
        found += _flat(inner["success"]) if name == "request_txn" else [(name, inner)]
    return found


def _kv(item: Item) -> Json:
    key, value = (b64encode(part).decode() for part in item[:2])
    return {"key": key, "value": value, "mod_revision": str(item.revision)}


def ledger(etcd: Etcd, *ways: Way, client: bytes = b"me") -> tuple[ChangeLedger, deque[Way]]:
    """A process's ledger, and how its next requests fare."""
    run: Any = Run(etcd, client, deque(ways))
    return ChangeLedger(run), run.ways


def append(more: bytes) -> Callable[[bytes | None], Decision[bytes]]:
    """Decides to append something; answers what is there then."""

    def decide(held: bytes | None) -> Decision[bytes]:
        value = (held or b"") + more
        return Decision(value, value)

    return decide


def claim(value: bytes) -> Callable[[bytes | None], Decision[bytes]]:
    """Decides to write a key that is absent; answers what it holds then."""
    return lambda held: Decision(value, value) if held is None else Decision(held, leave=True)


def insist(value: bytes) -> Callable[[bytes | None], Decision[bytes]]:
    """The same, and refuses where it is not absent."""

    def decide(held: bytes | None) -> Decision[bytes]:
        if held is not None:
            raise RefusedError("it is held")
        return Decision(value, value)

    return decide


def drop(held: bytes | None) -> Decision[bytes]:
    """Decides to delete a key; answers what it held."""
    return Decision(b"", leave=True) if held is None else Decision(held, None)


async def swap(book: ChangeLedger, decide: Callable[[bytes | None], Decision[bytes]]) -> bytes:
    return await book.swap(KEY, decide, NEVER)


# Changes on no condition, and attempts.


async def test_change_leaves_a_mark_on_the_runs_lease_which_the_next_takes_along() -> None:
    etcd = Etcd()
    book, _ = ledger(etcd)
    for number in range(5):
        revision = await book.change([words.put(KEY, b"%d" % number, OTHER)], NEVER)
        assert etcd.keys[KEY] == (b"%d" % number, revision, OTHER)
        assert etcd.marks() == 1
        [mark] = [key for key in etcd.keys if key != KEY]
        assert mark.startswith(b"/job/run/done/me/")
        assert etcd.keys[mark] == (b"", revision, LEASE)


async def test_processes_have_marks_of_their_own() -> None:
    etcd = Etcd()
    for client in (b"one", b"two"):
        await ledger(etcd, client=client)[0].change([words.put(b"/" + client, client, LEASE)], NEVER)
    assert etcd.value(b"/one") == b"one"
    assert etcd.value(b"/two") == b"two"


async def test_more_operations_than_one_transaction_takes() -> None:
    etcd = Etcd()
    book, _ = ledger(etcd)
    for value in (b"a", b"b"):
        await book.change([words.put(b"/%d" % number, value, LEASE) for number in range(300)], NEVER)
    assert [etcd.value(b"/%d" % number) for number in range(300)] == [b"b"] * 300
    assert etcd.marks() == 1


async def test_marks_of_many_calls_at_once_go_little_by_little() -> None:
    etcd = Etcd()
    book, _ = ledger(etcd)
    await asyncio.gather(*(book.change([], NEVER) for _ in range(45)))
    left = [etcd.marks()]
    for _ in range(4):
        await book.change([], NEVER)
        left.append(etcd.marks())
    assert left == [45, 26, 7, 1, 1]


async def test_lost_answer_is_found_and_its_mark_stays() -> None:
    etcd = Etcd()
    book, ways = ledger(etcd, Way.answer_lost)
    revision = await book.change([words.put(KEY, b"mine", LEASE)], NEVER)
    assert etcd.keys[KEY] == (b"mine", revision, LEASE)
    assert len([change for change in etcd.history if change[0] == KEY]) == 1
    ways.append(Way.late)
    await book.change([words.put(KEY, b"mine again", LEASE)], NEVER)
    await ledger(etcd, client=b"other")[0].change([words.put(KEY, b"theirs", LEASE)], NEVER)
    for _ in range(3):
        await book.change([], NEVER)
    assert etcd.marks() == 4  # two that were doubtful, the last, and the other's
    etcd.deliver()
    assert etcd.value(KEY) == b"theirs"


async def test_attempt_that_does_not_hold_changes_nothing_and_reads_the_other_side() -> None:
    etcd = Etcd()
    book, _ = ledger(etcd)
    await book.change([words.put(KEY, b"held", LEASE)], NEVER)
    before = dict(etcd.keys)
    mark = book.mark()
    tried = await book.attempt(
        mark, [words.unchanged(KEY, 0)], [words.delete(KEY)], [words.get(KEY)], deadline=NEVER
    )
    assert (tried.succeeded, tried.note) == (False, None)
    assert [part.item for part in tried.ranges] == [Item(KEY, b"held", before[KEY][1])]
    assert etcd.keys == before
    assert not mark.doubtful
    # The same mark serves for the next attempt.
    same = [words.unchanged(KEY, before[KEY][1])]
    tried = await book.attempt(mark, same, [words.get(KEY), words.delete(KEY)], deadline=NEVER)
    assert (tried.succeeded, tried.note, tried.revision) == (True, None, etcd.revision)
    assert [part.item for part in tried.ranges] == [Item(KEY, b"held", before[KEY][1])]
    assert etcd.value(KEY) is None


async def test_attempt_after_one_that_nobody_answered_is_told_its_note() -> None:
    etcd = Etcd()
    book, _ = ledger(etcd, Way.silent)
    mark = book.mark()

    async def attempt() -> Any:
        return await book.attempt(
            mark, [], [words.put(KEY, b"new", LEASE)], [words.get(KEY)], note=b"noted", deadline=NEVER
        )

    with pytest.raises(RendezvousTimeout):
        await attempt()
    assert mark.doubtful
    made = etcd.revision
    tried = await attempt()
    assert (tried.succeeded, tried.note, tried.revision) == (True, b"noted", made)
    assert [part.item for part in tried.ranges] == [Item(KEY, b"new", made)]
    assert len([change for change in etcd.history if change[0] == KEY]) == 1
    await book.change([], NEVER)
    await book.change([], NEVER)
    assert mark.key in etcd.keys


async def test_mark_stays_doubtful_whatever_comes_after() -> None:
    etcd = Etcd()
    book, _ = ledger(etcd, Way.away_late)
    mark = book.mark()
    with pytest.raises(RendezvousTimeout):
        await book.attempt(mark, [], [words.put(KEY, b"1", LEASE)], deadline=NEVER)
    assert (await book.attempt(mark, [], [words.put(KEY, b"2", LEASE)], deadline=NEVER)).note is None
    await book.change([], NEVER)
    await book.change([], NEVER)
    etcd.deliver()
    assert etcd.value(KEY) == b"2"
    assert mark == Mark(mark.key, doubtful=True)


# Swaps.


async def test_swap_keeps_a_keys_lease_and_gives_a_new_one_the_runs() -> None:
    etcd = Etcd()
    book, _ = ledger(etcd)
    assert await swap(book, append(b"a")) == b"a"
    assert etcd.keys[KEY][2] == LEASE
    await book.change([words.put(KEY, b"b", OTHER)], NEVER)
    assert await swap(book, append(b"c")) == b"bc"
    assert etcd.keys[KEY] == (b"bc", etcd.revision, OTHER)
    assert await swap(book, drop) == b"bc"
    assert etcd.value(KEY) is None
    assert await book.swap(KEY, claim(b"d"), NEVER, lease=OTHER) == b"d"
    assert etcd.keys[KEY][2] == OTHER


async def test_swap_looks_before_it_leaves_a_key_alone_or_refuses() -> None:
    etcd = Etcd()
    book, _ = ledger(etcd)
    assert await swap(book, drop) == b""
    assert await swap(book, claim(b"first")) == b"first"
    assert await swap(book, claim(b"second")) == b"first"
    with pytest.raises(RefusedError, match="it is held"):
        await swap(book, insist(b"third"))
    assert [change[2] for change in etcd.history if change[0] == KEY] == [b"first"]


async def test_swap_whose_answer_was_lost_is_recalled() -> None:
    etcd = Etcd()
    book, ways = ledger(etcd, Way.answer_lost)
    assert await swap(book, append(b"a")) == b"a"
    ways.extend([Way.arrives, Way.answer_lost])
    assert await swap(book, append(b"b")) == b"ab"
    ways.extend([Way.arrives, Way.answer_lost])
    assert await swap(book, drop) == b"ab"
    ways.append(Way.answer_lost)
    assert await swap(book, append(b"")) == b""  # a note without words is one, too
    assert [change[2] for change in etcd.history if change[0] == KEY] == [b"a", b"ab", None, b""]


@pytest.mark.parametrize("decide", [claim(b"late"), insist(b"late")])
async def test_what_left_a_key_alone_changes_nothing_later(decide: Any) -> None:
    etcd = Etcd()
    other, _ = ledger(etcd, client=b"other")
    await swap(other, claim(b"theirs"))
    book, _ = ledger(etcd, Way.late)
    with contextlib.suppress(RefusedError):
        assert await swap(book, decide) == b"theirs"
    assert await swap(other, drop) == b"theirs"
    etcd.deliver()
    assert etcd.value(KEY) is None


async def test_attempt_that_comes_in_time_after_all_is_the_answer() -> None:
    etcd = Etcd()
    other, _ = ledger(etcd, client=b"other")
    await swap(other, claim(b"theirs"))
    book, _ = ledger(etcd, Way.late)

    def decide(held: bytes | None) -> Decision[bytes]:
        if held == b"theirs":  # it is seen here, and then goes; and the first copy arrives
            del etcd.keys[KEY]
            etcd.deliver()
        return claim(b"mine")(held)

    assert await book.swap(KEY, decide, NEVER) == b"mine"
    assert etcd.value(KEY) == b"mine"
    assert [change[2] for change in etcd.history if change[0] == KEY] == [b"theirs", b"mine"]


async def test_calls_of_one_process_for_a_key_go_one_after_the_other() -> None:
    etcd = Etcd()
    book, _ = ledger(etcd)
    calls = [asyncio.ensure_future(swap(book, append(b"%d" % number))) for number in range(9)]
    for _ in range(8):  # some are over, one is under way, the others wait
        await asyncio.sleep(0)
    gone = calls[-2]
    gone.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers.pop(calls.index(gone)), asyncio.CancelledError)
    ends = [each for each in answers if isinstance(each, bytes)]
    assert ends == sorted(ends, key=len)
    assert etcd.value(KEY) == ends[-1]
    assert len(ends[-1]) == len(ends) == 8
    assert etcd.asked == 1 + 2 * 7  # the first finds the key absent, as it expected
    del calls, gone, answers, ends  # a cancelled call's traceback holds its lock
    await asyncio.sleep(0)  # the gathering goes, too
    gc.collect()
    assert not book._turns


# The law: a call changes its key exactly once, or not at all, as it is told, whatever is lost or late.

ACTIONS: dict[str, Callable[[bytes], Callable[[bytes | None], Decision[bytes]]]] = {
    "append": append,
    "claim": claim,
    "insist": insist,
    "drop": lambda token: drop,
}
CALLS = st.lists(st.sampled_from(sorted(ACTIONS)), max_size=6)
WAYS = st.lists(st.sampled_from([*Way, Way.late]), max_size=20)


@given(st.lists(CALLS, min_size=1, max_size=3), st.lists(WAYS, min_size=3, max_size=3), st.booleans())
def test_calls_happen_as_they_are_told(
    programs: list[list[str]], ways: list[list[Way]], midway: bool
) -> None:
    etcd = Etcd()
    dropped: list[bytes] = []
    unsure = 0

    async def client(number: int, program: list[str]) -> None:
        nonlocal unsure
        book, _ = ledger(etcd, *ways[number], client=b"%d" % number)
        for turn, action in enumerate(program):
            token = b"<%d.%d>" % (number, turn)
            try:
                answer = await swap(book, ACTIONS[action](token))
            except RefusedError:
                told[token] = 0
            except RendezvousTimeout:
                unsure += action == "drop"
            else:
                if action == "drop":
                    dropped.extend([answer] if answer else [])
                    told[token] = 0
                else:
                    told[token] = int(token in answer)
                    assert action != "append" or answer.endswith(token)
            if midway:
                etcd.deliver()

    told: dict[bytes, int] = {}

    async def main() -> None:
        await asyncio.gather(*(client(number, program) for number, program in enumerate(programs)))
        # What is still under way would find the key as it hopes.
        dropped.extend(filter(None, [await swap(ledger(etcd, client=b"last")[0], drop)]))

    run_virtual(main())
    etcd.deliver()
    changes = [(before or b"", after) for key, before, after in etcd.history if key == KEY]
    made = [after.removeprefix(before) for before, after in changes if after is not None]
    assert len(made) == len(set(made))
    for token, times in told.items():
        assert made.count(token) == times, token
    deleted = [before for before, after in changes if after is None]
    assert set(dropped) <= set(deleted)
    assert len(dropped) <= len(deleted) <= len(dropped) + unsure
