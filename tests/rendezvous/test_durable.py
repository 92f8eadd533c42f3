"""A store made of another's changes is the same store, whatever happened."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.rendezvous.events import Connected, Disconnected, Failure, StoreReply, StoreRequest, Tick
from aiodist.rendezvous.machine import SESSION_GRACE, StoreMachine
from aiodist.rendezvous.machine.budget import ANSWER_COST, ENTRY_COST, LEASE_COST, SESSION_COST
from aiodist.rendezvous.machine.changes import ChangeKind
from tests.levels import COSTLY
from tests.rendezvous.store_life import Life, state

A, B = b"a" * 16, b"b" * 16
CALM = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def journaled() -> StoreMachine:
    machine = StoreMachine()
    machine.restarted(0.0)
    return machine


def ask(
    machine: StoreMachine, client: bytes, id: int, method: str, *args: object, now: float = 0.0
) -> object:
    [answer] = [
        effect
        for effect in machine.handle(StoreRequest(client, id, method, list(args)), now)
        if isinstance(effect, StoreReply | Failure) and effect.client == client
    ]
    return answer.value if isinstance(answer, StoreReply) else answer


def reborn(*changes: object, now: float = 0.0) -> StoreMachine:
    """A store made of changes that went through bytes."""
    machine = StoreMachine()
    for change in msgpack.unpackb(msgpack.packb(changes)):
        machine.replay(change)
    machine.restarted(now)
    return machine


@pytest.mark.slow(COSTLY)
@CALM
@given(st.integers(0, 2**32))
@example(855)  # a client is given up that was told of nothing but a failure
def test_changes_make_the_same_store(seed: int) -> None:
    machine = journaled()
    life = Life(machine, seed)
    replica = StoreMachine()
    for _ in range(120):
        before = state(machine)
        life.step()
        lasting = machine.changed
        for change in msgpack.unpackb(msgpack.packb(machine.take_changes())):
            replica.replay(change)
        assert state(replica) == state(machine)
        assert lasting or len(state(machine)) <= len(before), "something came to be that is not to last"
    assert replica.budget.size == (
        sum(len(key) + len(entry.value) + ENTRY_COST for key, entry in machine.keys.entries.items())
        + LEASE_COST * len(machine.leases.by_token)
        + SESSION_COST * len(replica.sessions.by_client)
        + sum(sum(session.large.values()) for session in machine.sessions.by_client.values())
        + ANSWER_COST * sum(len(session.answered) for session in machine.sessions.by_client.values())
    )


@CALM
@given(st.integers(0, 2**32))
def test_a_dump_makes_the_same_store(seed: int) -> None:
    machine = journaled()
    life = Life(machine, seed)
    for _ in range(100):
        life.step()
    again = reborn(*machine.dump())
    assert state(again) == state(machine)


@CALM
@given(st.integers(0, 2**32))
def test_nothing_is_left_of_a_store_that_was_emptied(seed: int) -> None:
    """What everything weighs is accounted for to the last byte."""
    machine = journaled()
    life = Life(machine, seed)
    for _ in range(100):
        life.step()
    for client in sorted(life.here):
        machine.handle(Disconnected(client), life.now)
    machine.handle(Tick(), life.now + 1e6)
    machine.handle(Connected(A), life.now + 1e6)
    for id, key in enumerate(sorted(machine.keys.entries), 1):
        machine.handle(StoreRequest(A, id, "delete_key", [key], [id - 1]), life.now + 1e6)
    machine.handle(StoreRequest(A, 1000, "goodbye", []), life.now + 1e6)
    assert machine.budget.size == 0
    assert not machine.leases.by_token and not machine.waits.calls and not machine.gathers.rounds


def test_a_change_that_is_none_is_refused() -> None:
    for change in (
        (),
        (99,),
        (1, "k"),
        (2, "absent", b"", 1),
        (3, "absent", b"", 1),
        (4, "absent", 1),
        ("put",),
        (1, "k", b"", 1, 7),
    ):
        with pytest.raises(WireError, match="a change that cannot be repeated"):
            StoreMachine().replay(change)


def test_a_value_as_older_logs_have_it_is_read() -> None:
    machine = StoreMachine()
    machine.replay((ChangeKind.put, "k", b"first", 1, 0))
    machine.replay((ChangeKind.value, "k", b"second one", 2))
    entry = machine.keys.entries["k"]
    assert (entry.value, entry.revision) == (b"second one", 2)
    as_put = StoreMachine()
    as_put.replay((ChangeKind.put, "k", b"second one", 2, 0))
    assert machine.budget.size == as_put.budget.size


# What a restart leaves.


def test_an_add_that_is_sent_again_to_the_next_server_counts_once() -> None:
    machine = journaled()
    machine.handle(Connected(A), 0.0)
    assert ask(machine, A, 1, "add", "n", 5) == 5
    after = reborn(*machine.take_changes())
    after.handle(Connected(A), 0.0)
    assert ask(after, A, 2, "resume", [1], 0) is None
    assert ask(after, A, 1, "add", "n", 5) == 5
    assert ask(after, A, 3, "add", "n", 1) == 6


def test_a_client_whose_only_call_never_arrived_may_begin_anew() -> None:
    after = reborn()
    after.handle(Connected(A), 0.0)
    assert ask(after, A, 2, "resume", [1], 0) is None
    assert ask(after, A, 1, "add", "n", 5) == 5


def test_a_store_that_has_gone_back_is_found_out() -> None:
    machine = journaled()
    machine.handle(Connected(A), 0.0)
    ask(machine, A, 1, "add", "n", 5)
    older = machine.take_changes()
    ask(machine, A, 2, "add", "n", 5)
    for changes, kind in ((older, "older"), ([], "lost")):
        after = reborn(*changes)
        after.handle(Connected(A), 0.0)
        for id, request in ((3, ("resume", [], 2)), (4, ("add", "n", 1))):
            failure = ask(after, A, id, *request)
            assert isinstance(failure, Failure) and failure.kind == kind


def test_a_client_that_was_given_up_is_remembered_over_a_restart() -> None:
    machine = journaled()
    machine.handle(Connected(A), 0.0)
    ask(machine, A, 1, "add", "n", 5)
    machine.handle(Disconnected(A), 0.0)
    machine.handle(Tick(), SESSION_GRACE)
    for changes in (machine.take_changes(), machine.dump()):
        after = reborn(*changes)
        after.handle(Connected(A), 0.0)
        failure = ask(after, A, 2, "resume", [1], 0)
        assert isinstance(failure, Failure) and failure.kind == "lost"


def test_a_gather_that_was_answered_to_some_is_answered_to_all() -> None:
    machine = journaled()
    for rank, client in enumerate((A, B)):
        machine.handle(Connected(client), 0.0)
        machine.handle(StoreRequest(client, 1, "gather", ["g", rank, 2, client[:1], 9.0]), 0.0)
    for changes in (machine.dump(), machine.take_changes()):
        after = reborn(*changes)
        after.handle(Connected(B), 0.0)
        assert ask(after, B, 2, "resume", [1], 0) is None
        assert ask(after, B, 1, "gather", "g", 1, 2, b"b", 9.0) == [b"a", b"b"]


def test_every_lease_gets_one_ttl_after_a_restart() -> None:
    machine = journaled()
    machine.handle(Connected(A), 0.0)
    token = ask(machine, A, 1, "lease_grant", 10.0)
    ask(machine, A, 2, "lease_set", token, "many", b"")
    ask(machine, A, 3, "set", "one", b"", 10.0)
    machine.handle(Tick(), 9.9)
    after = reborn(*machine.dump(), now=1000.0)  # another clock: times are not kept
    after.handle(Connected(B), 1000.0)
    after.handle(Tick(), 1009.9)
    assert ask(after, B, 1, "list_keys", "") == ["many", "one"]
    after.handle(Tick(), 1010.0)
    assert ask(after, B, 2, "list_keys", "") == []


def test_what_was_claimed_is_free_where_its_holder_does_not_come_back() -> None:
    machine = journaled()
    for client, key in ((A, "a"), (B, "b")):
        machine.handle(Connected(client), 0.0)
        ask(machine, client, 1, "claim", key, b"mine")
    after = reborn(*machine.dump(), now=0.0)
    after.handle(Connected(B), 1.0)
    after.handle(Tick(), SESSION_GRACE)
    assert ask(after, B, 2, "list_keys", "") == ["b"]


def test_revisions_and_fencing_tokens_go_on() -> None:
    machine = journaled()
    machine.handle(Connected(A), 0.0)
    token = ask(machine, A, 1, "fence")
    assert isinstance(token, int)
    after = reborn(*machine.take_changes())
    after.handle(Connected(B), 0.0)
    grown = [ask(after, B, 1, "fence"), ask(after, B, 2, "lease_grant", 5.0), ask(after, B, 3, "fence")]
    assert grown == sorted(grown, key=lambda given: given if isinstance(given, int) else -1)
    assert isinstance(grown[0], int) and grown[0] > token
    assert len(set(grown)) == 3


def test_a_client_given_up_in_the_turn_in_which_its_gather_fails_is_so_after_a_restart() -> None:
    """It had an answer, of a call that changed nothing."""
    machine = journaled()
    machine.handle(Connected(A), 0.0)
    machine.handle(StoreRequest(A, 1, "gather", ["g", 0, 2, b"card", 5.0]), 0.0)
    machine.handle(Disconnected(A), 1.0)
    machine.handle(Tick(), 1.0 + SESSION_GRACE)
    assert state(reborn(*machine.take_changes())) == state(machine)
