"""The store's state machine, without I/O and with a clock of the test's own."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiodist.rendezvous.events import (
    Connected,
    Disconnected,
    Effect,
    Failure,
    Push,
    StoreReply,
    StoreRequest,
    Tick,
    Wake,
)
from aiodist.rendezvous.machine import RETURN_GRACE, SESSION_GRACE, StoreMachine
from aiodist.rendezvous.methods import METHODS

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


class Bench:
    """A machine, its clock, and what it answered to whom."""

    def __init__(self, *clients: bytes) -> None:
        self.machine = StoreMachine()
        self.now = 100.0
        self.effects: list[Effect] = []
        for client in clients:
            self.feed(Connected(client))

    def feed(self, event: Any) -> list[Effect]:
        effects = self.machine.handle(event, self.now)
        self.effects += effects
        return [effect for effect in effects if not isinstance(effect, Wake)]

    def ask(self, client: bytes, id: int, method: str, *args: Any, settled: Any = ()) -> list[Effect]:
        return self.feed(StoreRequest(client, id, method, list(args), list(settled)))

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.feed(Tick())

    @property
    def wake(self) -> float | None:
        wakes = [effect.at for effect in self.effects if isinstance(effect, Wake)]
        return wakes[-1] if wakes else None


def test_a_waiting_get_is_answered_by_a_set() -> None:
    bench = Bench(A, B)
    assert bench.ask(A, 1, "multi_get", ["k"], 5.0) == []
    assert bench.wake == 105.0
    assert bench.ask(B, 1, "set", "k", b"v", None) == [StoreReply(A, 1, [b"v"]), StoreReply(B, 1, None)]


def test_a_deadline_names_what_is_missing() -> None:
    bench = Bench(A)
    bench.ask(A, 1, "set", "here", b"", None)
    bench.ask(A, 2, "wait", ["here", "x", "y"], 5.0)
    assert bench.wait(4.9) == []
    [failure] = bench.wait(0.2)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.message) == ("timeout", "no process set 'x', 'y' within 5 s")
    assert failure.missing == (1, 2)
    bench.ask(A, 3, "wait", [f"k{n}" for n in range(9)], 1.0)
    [failure] = bench.wait(2)
    assert isinstance(failure, Failure) and failure.message.endswith("'k4' and 4 more within 1 s")
    bench.ask(A, 4, "multi_get", ["x", "here", *(f"k{n}" for n in range(900))], 1.0)
    [failure] = bench.wait(2)
    assert isinstance(failure, Failure) and failure.missing == (0, *range(2, 257))


def test_wakes_follow_the_next_deadline() -> None:
    bench = Bench(A)
    bench.ask(A, 1, "wait", ["x"], 50.0)
    bench.ask(A, 2, "wait", ["y"], 5.0)
    assert bench.wake == 105.0
    bench.wait(5)
    assert bench.wake == 150.0


def test_a_gather_that_nobody_completes_names_who_never_came() -> None:
    bench = Bench(A, B)
    bench.ask(A, 1, "gather", "g", 0, 4, b"", 5.0)
    bench.now += 1
    bench.ask(B, 1, "gather", "g", 2, 4, b"", 5.0)
    [first] = bench.wait(4)
    [second] = bench.wait(1)
    for failure in (first, second):
        assert isinstance(failure, Failure)
        assert failure.missing == (1, 3)
        assert failure.message == "ranks 1 and 3 did not come to 'g' within 5 s"


def test_who_gave_up_is_missing_where_all_others_came() -> None:
    bench = Bench(A, B)
    bench.ask(A, 1, "gather", "g", 0, 2, b"", 1.0)
    bench.ask(B, 1, "gather", "h", 0, 2, b"", 9.0)
    bench.wait(1)
    bench.ask(B, 2, "gather", "g", 1, 2, b"", 1.0)
    [failure] = bench.wait(1)
    assert isinstance(failure, Failure) and failure.missing == (0,)


def test_a_world_is_gathered_in_rank_order_and_packed_once() -> None:
    bench = Bench(A, B)
    bench.ask(A, 7, "gather", "g", 1, 2, b"one", 5.0)
    replies = bench.ask(B, 3, "gather", "g", 0, 2, b"zero", 5.0)
    assert sorted(replies, key=repr) == [
        StoreReply(A, 7, [b"zero", b"one"]),
        StoreReply(B, 3, [b"zero", b"one"]),
    ]
    one, two = replies
    assert isinstance(one, StoreReply) and isinstance(two, StoreReply) and one.value is two.value


def test_a_rank_that_comes_back_as_another_process_takes_its_place() -> None:
    bench = Bench(A, B, C)
    bench.ask(A, 1, "gather", "g", 0, 2, b"old", 50.0)
    [failure] = bench.ask(B, 1, "gather", "g", 0, 2, b"new", 50.0)
    assert isinstance(failure, Failure) and failure.kind == "conflict"
    bench.feed(Disconnected(A))
    assert bench.ask(B, 2, "gather", "g", 0, 2, b"new", 50.0) == []
    assert StoreReply(C, 1, [b"new", b"c"]) in bench.ask(C, 1, "gather", "g", 1, 2, b"c", 50.0)


# Exactly once.


def test_a_change_that_is_sent_again_happens_once() -> None:
    bench = Bench(A)
    assert bench.ask(A, 1, "add", "n", 5) == [StoreReply(A, 1, 5)]
    bench.feed(Disconnected(A))
    bench.feed(Connected(A))
    bench.ask(A, 2, "resume", [1], 0)
    assert bench.ask(A, 1, "add", "n", 5) == [StoreReply(A, 1, 5)]
    assert bench.ask(A, 3, "add", "n", 1, settled=[1]) == [StoreReply(A, 3, 6)]


def test_answers_are_forgotten_when_the_client_has_them() -> None:
    bench = Bench(A)
    for id in range(1, 100):
        bench.ask(A, id, "append", "k", b"x", settled=[id - 1])
    assert len(bench.machine.sessions.by_client[A].answered) == 1
    bench.feed(Disconnected(A))
    bench.feed(Connected(A))
    bench.ask(A, 100, "resume", [], 99)
    assert not bench.machine.sessions.by_client[A].answered


def test_a_gather_survives_a_short_absence() -> None:
    bench = Bench(A, B)
    bench.ask(A, 1, "gather", "g", 0, 2, b"a", 50.0)
    bench.feed(Disconnected(A))
    bench.ask(B, 1, "gather", "g", 1, 2, b"b", 50.0)
    bench.feed(Connected(A))
    bench.ask(A, 2, "resume", [1], 0)
    assert bench.ask(A, 1, "gather", "g", 0, 2, b"a", 50.0) == [StoreReply(A, 1, [b"a", b"b"])]


def test_who_is_away_too_long_is_told_so() -> None:
    bench = Bench(A, B)
    bench.ask(A, 9, "append", "k", b"answered, and perhaps never seen")
    bench.ask(A, 1, "gather", "g", 0, 2, b"a", 500.0)
    bench.feed(Disconnected(A))
    bench.wait(SESSION_GRACE - 1)
    assert len(bench.machine.sessions.by_client) == 2
    bench.wait(2)
    assert len(bench.machine.sessions.by_client) == 1
    bench.ask(B, 1, "gather", "g", 0, 2, b"b", 1.0)  # its place is free again
    bench.feed(Connected(A))
    for request in (("resume", [1], 0), ("gather", "g", 0, 2, b"a", 9.0), ("add", "n", 1)):
        [failure] = bench.ask(A, 2, *request)
        assert isinstance(failure, Failure) and failure.kind == "lost"
    assert bench.ask(B, 2, "check", ["n"]) == [StoreReply(B, 2, False)]


def test_coming_back_in_time_keeps_the_session() -> None:
    bench = Bench(A)
    bench.feed(Disconnected(A))
    bench.wait(SESSION_GRACE - 1)
    bench.feed(Connected(A))
    bench.wait(SESSION_GRACE)
    assert len(bench.machine.sessions.by_client) == 1


def test_goodbye_leaves_nothing() -> None:
    bench = Bench(A, B)
    bench.ask(A, 1, "wait", ["k"], 50.0)
    bench.ask(A, 2, "gather", "g", 0, 2, b"", 50.0)
    bench.ask(A, 3, "watch", "")
    assert bench.ask(A, 4, "goodbye") == [StoreReply(A, 4, None)]
    bench.feed(Disconnected(A))
    assert bench.ask(B, 1, "set", "k", b"", None) == [StoreReply(B, 1, None)]
    assert bench.ask(B, 2, "gather", "g", 0, 1, b"", 1.0) == [StoreReply(B, 2, [b""])]
    machine = bench.machine
    assert len(machine.sessions.by_client) == 1
    for left in (machine.waits.calls, machine.waits.wanted, machine.gathers.rounds, machine.watches.calls):
        assert not left


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_broken_connections_change_no_sum(rng: random.Random) -> None:
    """Requests and answers get lost at random and are sent again; every add counts once."""
    bench = Bench(A, B)
    expected = 0
    answers: list[int] = []
    ids = dict.fromkeys((A, B), 0)
    for _ in range(30):
        client = rng.choice((A, B))
        ids[client] += 1
        id, amount = ids[client], rng.randint(1, 9)
        expected += amount
        settled = [id - 1]
        while True:
            if rng.random() < 0.3:  # the request is lost, with the connection
                bench.feed(Disconnected(client))
                bench.feed(Connected(client))
                ids[client] += 1
                bench.ask(client, ids[client], "resume", [id], 0)
            [answer] = bench.ask(client, id, "add", "n", amount, settled=settled)
            if rng.random() < 0.7:  # else the answer is lost
                break
            settled = []
        assert isinstance(answer, StoreReply)
        answers.append(answer.value)
    assert answers == sorted(set(answers))
    assert answers[-1] == expected


# Leases, watches, limits.


def test_a_lease_ends_and_add_keeps_it() -> None:
    bench = Bench(A)
    bench.ask(A, 1, "set", "k", b"1", 10.0)
    bench.now += 5
    bench.ask(A, 2, "add", "k", 1)
    bench.wait(4.9)
    assert bench.ask(A, 3, "check", ["k"]) == [StoreReply(A, 3, True)]
    bench.wait(0.2)
    assert bench.ask(A, 4, "check", ["k"]) == [StoreReply(A, 4, False)]


def alive(bench: Bench, key: str) -> bool:
    [reply] = bench.ask(B, 1000, "check", [key])
    assert isinstance(reply, StoreReply)
    return bool(reply.value)


def test_a_lease_ends_soon_where_its_holder_is_gone() -> None:
    bench = Bench(A, B)
    bench.ask(A, 1, "set", "k", b"", 50.0)
    bench.ask(B, 1, "set", "other", b"", 50.0)
    bench.ask(A, 2, "set", "no lease", b"", None)
    bench.wait(10)
    bench.feed(Disconnected(A))
    assert bench.wake == bench.now + RETURN_GRACE
    bench.wait(RETURN_GRACE - 0.1)
    assert alive(bench, "k")
    bench.wait(0.1)
    assert not alive(bench, "k")
    assert alive(bench, "other") and alive(bench, "no lease")


@pytest.mark.parametrize("ttl", [1.0, 50.0, 3 * SESSION_GRACE])
def test_a_lease_of_many_keys_lasts_for_the_ttl_that_its_holder_counts_on(ttl: float) -> None:
    """Whatever becomes of its connection, or of the session."""
    bench = Bench(A, B)
    [granted] = bench.ask(A, 1, "lease_grant", ttl)
    assert isinstance(granted, StoreReply)
    bench.ask(A, 2, "lease_claim", granted.value, "k", b"a")
    bench.feed(Disconnected(A))
    bench.wait(ttl - 0.1)
    assert alive(bench, "k")
    bench.wait(0.1)
    assert not alive(bench, "k")


def test_a_lease_lasts_where_its_holder_comes_back_or_says_goodbye() -> None:
    bench = Bench(A, B, C)
    bench.ask(A, 1, "set", "a", b"", 50.0)
    bench.ask(C, 1, "set", "c", b"", 50.0)
    bench.ask(C, 2, "goodbye")
    bench.feed(Disconnected(C))
    bench.feed(Disconnected(A))
    bench.wait(RETURN_GRACE - 0.1)
    bench.feed(Connected(A))
    bench.wait(49 - RETURN_GRACE)
    assert alive(bench, "a") and alive(bench, "c")
    bench.wait(2)
    assert not alive(bench, "a") and not alive(bench, "c")


def test_a_lease_that_is_another_clients_by_now_is_left_alone() -> None:
    bench = Bench(A, B)
    bench.ask(A, 1, "set", "k", b"", 50.0)
    bench.wait(1)
    bench.ask(B, 1, "set", "k", b"", 50.0)
    bench.feed(Disconnected(A))
    bench.wait(RETURN_GRACE)
    assert alive(bench, "k")
    bench.feed(Disconnected(B))
    bench.wait(RETURN_GRACE)
    bench.feed(Connected(B))
    assert not alive(bench, "k"), "too late"


def test_a_claim_lasts_as_long_as_its_client() -> None:
    bench = Bench(A, B)
    assert bench.ask(A, 1, "claim", "k", b"a") == [StoreReply(A, 1, b"a")]
    assert bench.ask(B, 1, "claim", "k", b"b") == [StoreReply(B, 1, b"a")]
    bench.wait(1e6)
    assert bench.ask(B, 2, "claim", "k", b"b") == [StoreReply(B, 2, b"a")]
    bench.ask(A, 2, "compare_set", "k", b"a", b"")  # given back
    assert bench.ask(B, 3, "claim", "k", b"b") == [StoreReply(B, 3, b"b")]
    bench.feed(Disconnected(A))
    bench.wait(RETURN_GRACE)
    assert bench.ask(B, 4, "claim", "k", b"c") == [StoreReply(B, 4, b"b")]
    bench.feed(Disconnected(B))
    bench.wait(RETURN_GRACE)
    bench.feed(Connected(C))
    assert bench.ask(C, 1, "claim", "k", b"c") == [StoreReply(C, 1, b"c")]


def test_watches_report_revisions() -> None:
    bench = Bench(A, B)
    bench.ask(A, 1, "set", "w1", b"1", None)
    assert bench.ask(B, 1, "watch", "w") == [Push(B, 1, [["w1", b"1", 1]])]
    bench.ask(A, 2, "set", "x", b"", None)
    assert bench.ask(A, 3, "delete_key", "w1") == [Push(B, 1, [["w1", None, 3]]), StoreReply(A, 3, True)]
    bench.ask(B, 2, "cancel", 1)
    assert bench.ask(A, 4, "set", "w2", b"", None) == [StoreReply(A, 4, None)]


def test_timers_do_not_pile_up() -> None:
    bench = Bench(A, B)
    for id in range(1, 2000):
        bench.ask(A, id, "wait", ["k"], 300.0)
        bench.ask(B, 2 * id, "set", "k", b"", None, settled=[2 * id - 1])
        bench.ask(B, 2 * id + 1, "delete_key", "k", settled=[2 * id])
    assert len(bench.machine.timers) < 200


@pytest.mark.parametrize("method", METHODS)
def test_no_method_takes_nonsense(method: str) -> None:
    bench = Bench(A)
    for args in ([None] * len(METHODS[method].args), [True] * len(METHODS[method].args), [1] * 7):
        if len(args) == len(METHODS[method].args) == 0:
            continue
        [failure] = bench.ask(A, 1, method, *args)
        assert isinstance(failure, Failure) and failure.kind == "usage"


def test_there_is_no_other_method() -> None:
    for name in ("", "_expire", "request", "ſet"):
        [failure] = Bench(A).ask(A, 1, name)
        assert isinstance(failure, Failure) and failure.kind == "usage"
