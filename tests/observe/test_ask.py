"""Real processes are asked what they do: loops that turn, or are blocked, and interpreters that are held."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from aiodist.observe import Doing, RankView, Stacks
from aiodist.observe.ask import ask
from aiodist.observe.host import read_ranks
from aiodist.observe.recorder import records
from aiodist.observe.recorder.records import ASKED, FAULT, STACKS, open_folder
from tests.levels import COSTLY
from tests.observe.asked import KEY

PATIENCE = 30.0  # seconds: the machine may be busy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")

PROGRAM = Path(__file__).with_name("asked.py")
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts ranks, which record in a folder of their own."""
    monkeypatch.setattr(records, "SHARED_MEMORY", tmp_path)
    started = []

    def begin(what: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        words = [sys.executable, str(PROGRAM), str(tmp_path), what]
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        with process:
            process.kill()


def seen(process: subprocess.Popen[str], doing: Doing | None = None) -> RankView:
    """The view of a rank, when it does this."""
    while process.poll() is None:
        (view,) = read_ranks(KEY, process.pid)
        if doing in (None, view.doing):
            return view
    raise AssertionError("it has ended")


def asked(process: subprocess.Popen[str], doing: Doing | None = None) -> Stacks:
    (view,) = ask([seen(process, doing)], PATIENCE)
    assert view.stacks is not None
    return view.stacks


@pytest.mark.slow(COSTLY)
def test_a_loop_that_sleeps(start: Start) -> None:
    process = start("tasks")
    found = asked(process)
    while "selectors.py" not in found.thread[0]:  # on a busy machine it is still on its way to sleep
        found = asked(process)
    assert not found.by_signal  # the innermost call, and then those of the program
    assert [line.rpartition(" in ")[2] for line in found.thread[1:]] == ["main", "<module>"]
    assert found.tasks[0] == "Task-1: forever"
    below = found.tasks.index("    the leaf: leaf")
    assert re.fullmatch(r"      .*asked\.py:\d+ in leaf", found.tasks[below + 1])
    assert found.tasks[-1] == "      awaits a Future"
    assert any("in watch" in line for line in found.others)


def test_a_loop_that_is_blocked(start: Start) -> None:
    found = asked(start("blocked"))
    assert not found.by_signal
    assert any(line.endswith("in blocked") for line in found.thread)
    assert "  runs now" in found.tasks


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("what", ["held", "searching"])
def test_an_interpreter_that_is_held(start: Start, what: str) -> None:
    process = start(what)
    for _ in range(2):  # the second time there is more in the file
        found = asked(process, Doing.held)
        assert found.by_signal
        assert any(line.endswith(f"in {what}") for line in found.thread)
        assert found.tasks == ()
        assert any(line.endswith("in watch") for line in found.others)
    assert process.poll() is None


@pytest.mark.slow(COSTLY)
def test_a_call_in_c_is_not_interrupted_where_the_watching_thread_is_not_known(start: Start) -> None:
    """As it is in the first moments of a process. `pause` would return, and the process end."""
    process = start("held")
    view = seen(process, Doing.held)
    about = {name: value for name, value in view.recording.about.items() if name != "watcher"}
    for _ in range(2):
        (told,) = ask([replace(view, recording=replace(view.recording, about=about))], PATIENCE)
        assert told.stacks is not None and told.stacks.by_signal
    assert process.poll() is None
    assert seen(process).doing is Doing.held


@pytest.mark.slow(COSTLY)
def test_one_that_is_stopped_is_not_asked(start: Start) -> None:
    process = start("tasks")
    os.kill(process.pid, signal.SIGSTOP)
    (view,) = ask([seen(process, Doing.stopped)])
    assert view.stacks is None
    os.kill(process.pid, signal.SIGCONT)
    assert asked(process, Doing.running).tasks


@pytest.mark.slow(COSTLY)
def test_without_a_loop_and_nothing_stays(start: Start) -> None:
    process = start("without")
    found = asked(process)
    assert found.tasks == ()
    assert found.thread[0].endswith("in main")
    with open_folder() as folder:
        (own,) = (name for name in folder.names() if name.count(".") == 3)
        ends = {name.removeprefix(own) for name in folder.names()}
        assert ends == {"", STACKS, FAULT}
        process.communicate()
        assert process.returncode == 0
        assert folder.names() == []


@pytest.mark.slow(COSTLY)
def test_all_are_asked_at_once(start: Start) -> None:
    processes = [start("tasks"), start("blocked"), start("held")]
    views = [seen(processes[0]), seen(processes[1]), seen(processes[2], Doing.held)]
    elsewhere, gone = replace(views[0], host="elsewhere"), replace(views[0], alive=False)
    first, second, third, *others = ask([*views, elsewhere, gone], PATIENCE)
    assert first.stacks and second.stacks and third.stacks
    assert [first.stacks.by_signal, second.stacks.by_signal, third.stacks.by_signal] == [False, False, True]
    assert [view.stacks for view in others] == [None, None]


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(("what", "doing"), [("tasks", Doing.running), ("held", Doing.held)])
def test_many_ask_the_same_process_at_once(start: Start, what: str, doing: Doing) -> None:
    process = start(what)
    view = seen(process, doing)
    with ThreadPoolExecutor(8) as askers:
        told = [one.stacks for (one,) in askers.map(lambda _: ask([view], PATIENCE), range(40))]
    assert all(stacks is not None and stacks.by_signal == (what == "held") for stacks in told)
    lasts = {stacks.thread[-1].rpartition(" in ")[2] for stacks in told if stacks is not None}
    assert lasts == {"<module>"}  # each has the whole stack
    inner = "held" if what == "held" else "select"
    assert all(stacks is not None and f"in {inner}" in " ".join(stacks.thread) for stacks in told)
    assert process.poll() is None
    with open_folder() as folder:
        left = [name for name in folder.names() if name.endswith(ASKED)]
        assert len(left) == (what == "held")  # it answers when it can


@contextmanager
def silent(process: subprocess.Popen[str]) -> Iterator[None]:
    """The process does not answer in time."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.slow(COSTLY)
def test_a_signal_is_sent_only_to_who_catches_it(start: Start) -> None:
    process = start("tasks")
    view = seen(process)
    about = {**view.recording.about, "signal": signal.SIGRTMAX}
    (told,) = ask([replace(view, recording=replace(view.recording, about=about))])
    assert told.stacks is not None  # it answers
    with silent(process):
        (told,) = ask([replace(view, recording=replace(view.recording, about=about))], patience=0.01)
        assert told.stacks is None
    assert asked(process).tasks
    assert process.poll() is None


@pytest.mark.slow(COSTLY)
def test_an_answer_that_is_broken(start: Start) -> None:
    process = start("tasks")
    view = seen(process)
    with silent(process), open_folder() as folder:
        for text in (b"", b"[]", b'{"thread": 1}'):
            (own,) = (name for name in folder.names() if name.count(".") == 3)
            handle = folder.fresh(f"{own}{FAULT}")
            os.write(handle, text)
            os.close(handle)
            (told,) = ask([view], patience=0.01)
            assert told.stacks is None


def test_nobody_records_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("SHARED_MEMORY", "ELSEWHERE"):
        monkeypatch.setattr(records, place, tmp_path / "missing")
    assert ask([]) == []
