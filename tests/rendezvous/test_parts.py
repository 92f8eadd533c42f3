"""The parts of a store's machine stand alone, and the table of methods fits them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from aiodist.rendezvous.etcd.store import EtcdStore
from aiodist.rendezvous.events import Effect, Push, StoreReply
from aiodist.rendezvous.machine import StoreMachine, budget
from aiodist.rendezvous.machine.budget import ANSWER_COST, LEASE_COST, Budget
from aiodist.rendezvous.machine.changes import ChangeKind, Journal
from aiodist.rendezvous.machine.entries import KeyEntry
from aiodist.rendezvous.machine.leases import Leases
from aiodist.rendezvous.machine.sessions import Sessions
from aiodist.rendezvous.machine.timers import Timers
from aiodist.rendezvous.machine.waits import KeyWaits
from aiodist.rendezvous.machine.watches import Watches
from aiodist.rendezvous.methods import METHODS
from aiodist.rendezvous.rules import RefusedError
from aiodist.rendezvous.store import Store
from tests.levels import COSTLY

A, B = b"a" * 16, b"b" * 16


def test_a_budget_refuses_what_is_too_much_and_takes_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Budget(1000)
    kept.make_room(1000 - ANSWER_COST)
    with pytest.raises(RefusedError, match="the store is full") as refused:
        kept.make_room(1)
    assert (refused.value.kind, kept.size) == ("full", 1000 - ANSWER_COST)
    kept.make_room(-500)
    monkeypatch.setattr(budget, "MAX_WAITING", 1)
    kept.begin_wait(100)
    with pytest.raises(RefusedError, match="1 calls wait"):
        kept.begin_wait(1)
    kept.end_wait(100)
    assert (kept.size, kept.waiting) == (500 - ANSWER_COST, 0)


def test_a_journal_notes_once_it_has_begun_and_counts_always() -> None:
    journal = Journal()
    journal.note(ChangeKind.remove, "k", journal.next_revision())
    assert (journal.revision, journal.changed, journal.take()) == (1, False, [])
    journal.begin()
    changed = []
    for change in ((ChangeKind.settled, A, [1]), (ChangeKind.revision, 2)):
        journal.note(*change)
        changed.append(journal.changed)
    assert changed == [False, True], "to lose what a client has costs nothing"
    assert journal.take() == [(ChangeKind.settled, A, [1]), (ChangeKind.revision, 2)]
    assert (journal.changed, journal.take()) == (False, [])


class Table:
    """Things that end, each at the last time that was set."""

    def __init__(self) -> None:
        self.ends: dict[str, float] = {}

    def is_due(self, subject: str, at: float) -> bool:
        return self.ends.get(subject) == at


def test_timers_are_in_the_order_of_time_and_skip_what_means_nothing_any_more() -> None:
    timers, table = Timers(), Table()
    for subject, at in (("late", 9.0), ("moved", 1.0), ("first", 2.0), ("second", 2.0), ("gone", 2.0)):
        table.ends[subject] = at
        timers.set(at, table, subject)
    table.ends["moved"] = 3.0
    timers.set(3.0, table, "moved")
    del table.ends["gone"]
    assert timers.first == 1.0
    assert not timers.due(1.5)
    popped = []
    while (due := timers.pop(5.0)) is not None:
        popped.append(due[1])
    assert popped == ["first", "second", "moved"]
    for _ in range(10_000):
        timers.set(9.0, table, "gone")
    assert len(timers) < 200


def parts() -> tuple[Budget, Journal, Timers, list[Effect], Sessions]:
    kept, journal, timers, effects = Budget(1 << 20), Journal(), Timers(), list[Effect]()
    return kept, journal, timers, effects, Sessions(kept, journal, timers, effects)


def test_leases_know_their_holders() -> None:
    kept, journal, timers, _, sessions = parts()
    leases = Leases(kept, journal, timers, sessions)
    own = leases.grant(A, 0.0, 5.0, single=True)
    many = leases.grant(A, 0.0, 5.0, single=False)
    assert (own.token, many.token, kept.size) == (1, 2, 2 * LEASE_COST)
    assert leases.of_many(own.token) is None and leases.standing(many.token) is many
    leases.cut(A, 2.0)
    assert (own.due, many.due) == (2.0, 5.0)
    leases.restore(A)
    assert own.due == 5.0
    sessions.begin(B)
    leases.lease_renew((B, 1), 1.0, many.token)
    assert (many.owner, many.due) == (B, 6.0)
    leases.leave("k", own)  # with its key
    assert not leases.is_holder(A) and leases.is_holder(B)
    assert leases.drop(many) and not leases.drop(many)
    assert kept.size == budget.SESSION_COST and not leases.by_token
    with pytest.raises(RefusedError, match="lease 2 has ended"):
        leases.standing(2)


def test_waits_and_watches_look_at_the_entries_alone() -> None:
    kept, _, timers, effects, sessions = parts()
    entries = {"a": KeyEntry(b"1", 1)}
    waits, watches = KeyWaits(kept, timers, sessions, entries), Watches(kept, effects, entries)
    waits.multi_get((A, 1), 0.0, ["a", "b"], 5.0)
    watches.watch((A, 2), 0.0, "")
    assert effects == [Push(A, 2, [["a", b"1", 1]])] and kept.waiting == 2
    effects.clear()
    entries["b"] = KeyEntry(b"2", 2)
    waits.arrived("b")
    watches.tell("b", b"2", 2)
    assert effects == [StoreReply(A, 1, [b"1", b"2"]), Push(A, 2, [["b", b"2", 2]])]
    watches.forget((A, 2))
    assert (kept.size, kept.waiting, waits.calls, waits.wanted) == (0, 0, {}, {})


# The table.


def arguments(function: Any) -> int:
    return len(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_carried_out_with_its_arguments(name: str) -> None:
    method, machine = METHODS[name], StoreMachine()
    part = getattr(machine, method.part) if method.part else machine
    assert arguments(getattr(part, name)) == 2 + len(method.args)  # the call, now
    if method.answer is not None:
        assert arguments(getattr(EtcdStore, f"_{name}")) == 2 + len(method.args) - method.waits  # self, call
        assert name.startswith("lease_") or callable(getattr(Store, name))


# Foreign formats.


@pytest.mark.slow(COSTLY)
def test_foreign_formats_are_loaded_when_used() -> None:
    code = (
        "import sys, aiodist.rendezvous, aiodist.group.runtime.joining\n"
        "print([name for name in sys.modules if 'rendezvous.etcd' in name or 'rendezvous.launchers' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
