"""What the thread of MPI's calls does, on a library that does what a test says. Mostly without the thread."""

from __future__ import annotations

import threading

import pytest

from aiodist.backends.mpi import backoff
from aiodist.backends.mpi import progress as module
from aiodist.backends.mpi.progress import MpiProgress
from tests.backends.mpi.fakes import Heard, Mpi, Request


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.0)


@pytest.fixture
def mpi() -> Mpi:
    return Mpi()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def progress(mpi: Mpi) -> MpiProgress:
    """One whose clock stands still, so that it never sleeps."""
    return MpiProgress(mpi.test, clock=lambda: 0.0)


def run(progress: MpiProgress) -> list[Request]:
    """Let it obey what it was told; what is open then."""
    progress.end()
    return [posted.request for posted in progress.run()]


def test_job_is_done_when_its_last_request_has_ended(progress: MpiProgress, heard: Heard, mpi: Mpi) -> None:
    first, second = Request(looks=1), Request(looks=3)
    told: list[list[str]] = []

    def watch(requests: list[object], posted: object) -> object:
        told.append(list(heard.done))
        ended = mpi.test(requests, posted)  # type: ignore[arg-type]
        if len(told) == 3:
            progress.end()
        return ended

    progress._test = watch  # type: ignore[assignment]
    progress.post(heard.job("both", first, second))
    assert progress.run() == []
    assert told == [[], [], []]
    assert heard.done == ["both"]
    assert mpi.seen == [2, 1, 1]


def test_job_without_requests_is_done_at_once(progress: MpiProgress, heard: Heard, mpi: Mpi) -> None:
    progress.post(heard.job("nothing"))
    assert run(progress) == []
    assert heard.done == ["nothing"]
    assert mpi.looks == 0


def test_orders_are_obeyed_in_their_order(progress: MpiProgress, heard: Heard) -> None:
    order: list[str] = []
    progress.call(lambda: order.append("one"))
    progress.post(heard.job("nothing"))
    progress.call(lambda: order.append(f"two after {heard.done}"))
    run(progress)
    assert order == ["one", "two after ['nothing']"]


def test_what_is_open_at_the_end_is_handed_out(progress: MpiProgress, heard: Heard) -> None:
    request = Request()
    progress.post(heard.job("open", request))
    assert run(progress) == [request]
    assert heard.done == heard.failed == []


def test_what_is_open_at_the_end_has_a_moment_to_end(
    mpi: Mpi, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 5.0)
    seconds = iter(range(100))
    progress = MpiProgress(mpi.test, lambda: float(next(seconds)))
    soon, late = Request(looks=3), Request(looks=30)
    progress.post(heard.job("soon", soon))
    progress.post(heard.job("late", late))
    assert run(progress) == [late]
    assert heard.done == ["soon"]


def test_post_that_raises_fails_the_job_once_and_what_it_posted_is_kept(
    progress: MpiProgress, heard: Heard
) -> None:
    request = Request(error=ValueError("later"), looks=1)
    progress.post(heard.job("bad", request, ValueError("count < 0")))
    progress.post(heard.job("good"))
    progress.call(progress.end)
    progress.call(progress._poll)
    assert progress.run() == []
    assert heard.failed == ["bad: count < 0"]
    assert heard.done == ["good"]


def test_request_that_fails_fails_its_job_once(progress: MpiProgress, heard: Heard) -> None:
    requests = [Request(over=True, error=ValueError("truncated")), Request(over=True)]
    progress.post(heard.job("bad", *requests, Request(over=True, error=ValueError("again"))))
    progress.post(heard.job("good", Request(over=True)))
    progress.call(progress._poll)
    assert run(progress) == []
    assert heard.failed == ["bad: truncated"]
    assert heard.done == ["good"]


def test_order_that_raises_does_not_end_the_thread(
    progress: MpiProgress, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    def bad() -> None:
        raise ValueError("no such communicator")

    progress.call(bad)
    progress.post(heard.job("good"))
    run(progress)
    assert heard.done == ["good"]
    assert "no such communicator" in caplog.text


# ── abandoned ────────────────────────────────────────────────────────────────────────────────────────────


def test_abandoned_owner_is_quiet_when_its_requests_have_ended(progress: MpiProgress, heard: Heard) -> None:
    mine, other = Request(), Request()
    released: list[str] = []
    progress.post(heard.job("mine", mine, owner="a"))
    progress.post(heard.job("other", other, owner="b"))
    progress.abandon("a", lambda: released.append("a"))
    progress.call(progress._poll)
    progress.call(lambda: released.append("not yet"))
    progress.call(lambda: setattr(mine, "over", True))
    progress.call(progress._poll)
    assert run(progress) == [other]
    assert released == ["not yet", "a"]
    assert heard.done == ["mine"]


def test_abandoned_owner_without_requests_is_quiet_at_once(progress: MpiProgress) -> None:
    released: list[str] = []
    progress.abandon("a", lambda: released.append("a"))
    run(progress)
    assert released == ["a"]


def test_abandoned_owner_posts_nothing_more(progress: MpiProgress, heard: Heard) -> None:
    progress.post(heard.job("before", Request(over=True), owner="a"))
    progress.abandon("a", lambda: None)
    progress.post(heard.job("after", Request(over=True), owner="a"))
    progress.post(heard.job("other", owner="b"))
    progress.call(progress._poll)
    assert run(progress) == []
    assert heard.done == ["other", "before"]


def test_receives_are_taken_back_and_nothing_else(progress: MpiProgress, heard: Heard) -> None:
    receive, send, theirs = Request(), Request(), Request()
    released: list[str] = []
    progress.post(heard.job("both", (receive, True), send, owner="a"))
    progress.post(heard.job("theirs", (theirs, True), owner="b"))
    progress.abandon("a", lambda: released.append("a"))
    progress.call(progress._poll)
    assert run(progress) == [send, theirs]
    assert [receive.cancelled, send.cancelled, theirs.cancelled] == [True, False, False]
    assert released == []


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────


def test_longer_nothing_moves_the_longer_are_its_pauses(mpi: Mpi, heard: Heard) -> None:
    now, offers = [0.0], [0]

    def clock() -> float:
        now[0] += 40e-6
        return now[0]

    def offer() -> None:
        offers[0] += 1

    progress = MpiProgress(mpi.test, clock, offer)
    progress.post(heard.job("late", Request(looks=20)))
    progress.post(heard.job("never", Request()))

    def look(requests: list[object], posted: object) -> object:
        ended = mpi.test(requests, posted)  # type: ignore[arg-type]
        if heard.done or ended:
            progress.end()
        return ended

    progress._test = look  # type: ignore[assignment]
    assert len(progress.run()) == 1
    assert heard.done == ["late"]
    assert offers == [5]  # of 20 looks: two without a pause, five that offer, and the rest after sleeps


def test_new_order_ends_a_pause_at_once(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "LONGEST", 3600.0)
    monkeypatch.setattr(backoff, "SHORTEST", 3600.0)
    mpi, now = Mpi(), iter(range(1000))
    progress = MpiProgress(mpi.test, lambda: float(next(now)))
    slept = threading.Event()

    def look(requests: list[object], posted: object) -> object:
        if mpi.looks:  # the next pause is an hour
            slept.set()
        return mpi.test(requests, posted)  # type: ignore[arg-type]

    progress._test = look  # type: ignore[assignment]
    progress.post(heard.job("never", Request()))

    def order() -> None:
        slept.wait()
        progress.post(heard.job("now"))
        progress.end()

    thread = threading.Thread(target=order)
    thread.start()
    assert len(progress.run()) == 1
    thread.join()
    assert heard.done == ["now"]


def test_without_requests_it_waits_for_orders(mpi: Mpi) -> None:
    progress = MpiProgress(mpi.test)
    thread = threading.Thread(target=progress.call, args=(progress.end,))
    thread.start()
    assert progress.run() == []
    thread.join()
    assert mpi.looks == 0
