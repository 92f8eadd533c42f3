"""The hierarchy is the tree that errors.py draws; every error says what to do, and which operation it was."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import traceback
from typing import Any

import pytest

from aiodist.base import errors
from aiodist.base.errors import (
    AiodistError,
    CallError,
    CallNotRun,
    CallTimeout,
    CallTooLate,
    CallUnknown,
    CollectiveMismatch,
    CollectiveTimeout,
    Evicted,
    ForgottenAwait,
    GroupAborted,
    GroupBroken,
    PeerClosed,
    PeerLost,
    QuorumLost,
    RemoteError,
    RendezvousTimeout,
    Tampered,
    UnreadableMessage,
    UsageError,
    name_ranks,
)


def drawn() -> dict[str, list[str]]:
    """Class → bases, as the module's docstring draws them."""
    assert errors.__doc__ is not None
    tree: dict[str, list[str]] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ((?:│   |    )*)(?:[├└]── )?([A-Z]\w+)(?: \((\w+)\))?(?:  |$)", line)
        if match is None:
            continue
        bars, name, other = match.groups()
        depth = len(bars) // 4 + ("──" in line)
        path[depth:] = [name]
        tree[name] = ([path[depth - 1]] if depth else ["Exception"]) + ([other] if other else [])
    return tree


def test_hierarchy_equals_the_drawn_tree() -> None:
    found = {
        name: [base.__name__ for base in thing.__bases__]
        for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, Exception)
    }
    assert found == drawn()
    assert len(found) >= 15


@pytest.mark.parametrize("name", sorted(drawn()))
def test_every_error_is_documented(name: str) -> None:
    assert getattr(errors, name).__doc__


def test_hint_is_part_of_the_text() -> None:
    assert str(UsageError("no such rank", hint="Use 0 to 3")) == "no such rank. Use 0 to 3"
    assert str(UsageError("no such rank")) == "no such rank"
    error = RendezvousTimeout("rank 2 did not come", missing=[2], hint="Start it")
    assert (error.message, error.hint, error.missing) == ("rank 2 did not come", "Start it", (2,))
    assert str(error) == "rank 2 did not come. Start it"


def test_usage_error_and_timeout_are_what_python_calls_so() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        raise UsageError("nonsense")
    with pytest.raises(TimeoutError):
        raise CollectiveTimeout(3, [1])


BROKEN: list[tuple[GroupBroken, dict[str, Any], str]] = [
    (
        PeerLost([3, 1], "process 7 ended"),
        {"ranks": (1, 3), "cause": "process 7 ended"},
        "lost ranks 1 and 3",
    ),
    (CollectiveTimeout(2.5, [4]), {"timeout": 2.5, "missing": (4,)}, "within 2.5 s: rank 4 had not arrived"),
    (CollectiveTimeout(2.5), {"missing": ()}, "all ranks had arrived"),
    (
        CollectiveTimeout(2.5, [4], [1], "rank 1 (b) has not run its event loop for 8 s: train.py:41"),
        {"missing": (4,), "unheard": (1,)},
        "rank 4 had not arrived; rank 1 did not answer; rank 1 (b) has not run",
    ),
    (CollectiveMismatch({1: "b", 0: "a"}), {"said": {0: "a", 1: "b"}}, "rank 0: a; rank 1: b"),
    (
        CollectiveMismatch({2: "barrier() at a b.py:3", 1: "split()", 0: "barrier() at a b.py:3"}),
        {
            "said": {0: "barrier()", 1: "split()", 2: "barrier()"},
            "places": {0: "a b.py:3", 2: "a b.py:3"},
        },
        "ranks 0 and 2: barrier() at a b.py:3; rank 1: split()",
    ),
    (GroupAborted(2, "no disk"), {"rank": 2, "reason": "no disk"}, "rank 2 aborted the group: no disk"),
    (Evicted("they went on", hint="Join again"), {}, "they went on"),
    (QuorumLost("two of five are left"), {}, "two of five"),
    (Tampered(), {}, "the data were altered on the network path"),
    (GroupBroken("because", hint="Try again"), {}, "because"),
]


@pytest.mark.parametrize(("error", "fields", "text"), BROKEN, ids=lambda value: type(value).__name__)
def test_during_gives_a_copy_that_names_the_operation(
    error: GroupBroken, fields: dict[str, Any], text: str
) -> None:
    cause = OSError("the wire")
    error.__cause__ = cause
    before = str(error)
    named = error.during("all_reduce", 7, "world")
    assert type(named) is type(error)
    assert named is not error
    assert (named.op, named.seq, named.group) == ("all_reduce", 7, "world")
    assert text in str(named)
    assert "(in all_reduce #7 of group 'world')" in str(named)
    assert named.hint == error.hint and str(named).endswith(error.hint)
    assert named.args == (error.message,)
    assert named.__cause__ is cause
    for name, value in fields.items():
        assert getattr(named, name) == getattr(error, name) == value
    assert str(error) == before  # the original says nothing of it
    assert error.op == "" and error.seq is None
    again = named.during("barrier", None, "pair")
    assert "(in barrier of group 'pair')" in str(again)


def test_nobody_is_told_of_itself_that_it_had_not_arrived() -> None:
    error = CollectiveTimeout(2.5, [4], [1], "rank 1 (b) is busy")
    assert error.as_read_by(3, 0) is error
    for rank, others in ((4, "rank 1 did not answer"), (1, "rank 4 had not arrived")):
        read = error.as_read_by(rank, 0)
        assert (read.missing, read.unheard, read.trouble) == ((4,), (1,), "rank 1 (b) is busy")
        named = read.during("recv", 0, "world")
        words = f"rank 0 gave up after 2.5 s of waiting for rank {rank}, this process; {others}; rank 1 (b)"
        assert str(named).startswith(words) and "that rank" not in str(named)
    alone = str(CollectiveTimeout(2.5, [1]).as_read_by(1, 0))
    assert "had not arrived" not in alone and "all ranks had arrived" not in alone


def test_where_nobody_is_late_nobody_is_called_slow() -> None:
    assert "that rank" in str(CollectiveTimeout(3, [1]))
    for error in (CollectiveTimeout(3), CollectiveTimeout(3, trouble="all ranks had arrived")):
        assert str(error).count("all ranks had arrived") == 1 and "that rank" not in str(error)


def test_broken_errors_have_a_hint_each() -> None:
    for error, _, _ in BROKEN:
        if type(error) not in (GroupBroken, Evicted, QuorumLost):
            assert error.hint


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([2, 1], "ranks 1 and 2"),
        ([5, 1, 2], "ranks 1, 2 and 5"),
        (range(10), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8 and 9"),
        (range(13), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 3 more"),
    ],
)
def test_ranks_are_listed_in_order_and_cut(ranks: Any, words: str) -> None:
    assert name_ranks(ranks) == words


def test_ranks_that_are_not_listed_are_counted() -> None:
    assert name_ranks(range(12), 500) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 490 more"


def test_nothing_is_shared_between_a_copy_and_its_source_but_the_facts() -> None:
    error = PeerLost([1], "gone")
    first, second = error.during("send", 1, "g"), error.during("recv", 2, "g")
    first.add_note("mine")
    assert not hasattr(second, "__notes__")
    assert isinstance(copy.copy(AiodistError("x")), AiodistError)


# Errors cross process borders: in a pool of processes, under a test runner, in a launcher.

EVERY: list[AiodistError] = [
    *(error for error, _, _ in BROKEN),
    *(error.during("all_reduce", 7, "world") for error, _, _ in BROKEN),
    RendezvousTimeout("rank 2 did not come", missing=[2], hint="Start it"),
    PeerClosed([2, 1]),
    ForgottenAwait([("barrier", "train.py", 7, 3)]),
    *(
        kind(2, "lookup", "why", hint="what to do")
        for kind in (CallError, CallNotRun, CallTooLate, CallUnknown, CallTimeout)
    ),
    RemoteError(2, "lookup", "KeyError", "'a'"),
    UnreadableMessage("a message of rank 2 cannot be read", sender=2, hint="what to do"),
    *(
        kind("what happened", hint="what to do")
        for kind in (vars(errors)[name] for name in drawn())
        if not issubclass(kind, GroupBroken | RendezvousTimeout | PeerClosed | CallError | ForgottenAwait)
    ),
]


def facts(error: BaseException) -> Any:
    """All that an error says."""
    return type(error), str(error), error.args, vars(error)


def test_every_kind_of_error_is_among_them() -> None:
    assert {type(error).__name__ for error in EVERY} == set(drawn())


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_are_pickled_whole(error: AiodistError, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert facts(again) == facts(error)
    assert isinstance(again, TimeoutError) is isinstance(error, TimeoutError)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_errors_are_copied_whole(error: AiodistError, copied: Any) -> None:
    again = copied(error)
    assert again is not error
    assert facts(again) == facts(error)
    again.hint = "another"
    assert error.hint != "another"


def test_notes_go_with_them() -> None:
    error = PeerLost([1], "gone")
    error.add_note("in step 7")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["in step 7"]


def test_an_error_of_a_users_own_subclass_is_pickled_too() -> None:
    error = OwnError(3)
    error.extra = "of the user"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.extra) == (OwnError, "the number 3", "of the user")


class OwnError(PeerLost):
    """With a constructor that knows nothing of ours."""

    extra = ""

    def __init__(self, number: int) -> None:
        super().__init__([number], "gone")
        self.message = f"the number {number}"


IN_A_POOL = """
import concurrent.futures, sys
from aiodist.base.errors import CollectiveTimeout, GroupBroken

def work():
    raise CollectiveTimeout(2.5, [4]).during("barrier", 3, "world")

if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        try:
            pool.submit(work).result(timeout=60)
        except GroupBroken as error:
            print(type(error).__name__, error.missing, error.op, error.seq, isinstance(error, TimeoutError))
"""


def test_they_come_out_of_a_pool_of_processes() -> None:
    result = subprocess.run(
        [sys.executable, "-c", IN_A_POOL], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == "CollectiveTimeout (4,) barrier 3 True"


def test_a_receive_that_others_waited_for_says_that_nothing_has_come() -> None:
    read = CollectiveTimeout(2.5, [1]).as_read_by(1, 0)
    assert "Nothing that fits has come" in str(read.during("recv_object", 0, "world"))
    assert "Nothing that fits has come" not in str(read.during("all_reduce", 0, "world"))
    assert "this process" in str(read.during("recv", 0, "world"))


def test_a_traceback_names_an_error_as_programs_import_it() -> None:
    error = PeerLost([1], "gone")
    assert traceback.format_exception_only(error)[0].startswith("aiodist.PeerLost: ")
    assert type(pickle.loads(pickle.dumps(error))) is PeerLost
