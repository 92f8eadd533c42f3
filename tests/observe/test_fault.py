"""What `faulthandler` writes is read; signals are taken that nobody uses, and given back."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.fault import FaultFile, catches, parse, send
from aiodist.observe.frames import FrameCall
from aiodist.observe.recorder import records
from aiodist.observe.recorder.records import FAULT, Memory
from tests.levels import COSTLY
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    """A recorder's file in a folder of its own."""
    monkeypatch.setattr(records, "SHARED_MEMORY", tmp_path)
    made = Memory("job")
    yield made
    made.remove()


def test_a_signal_makes_it_write(memory: Memory, tmp_path: Path) -> None:
    file, other = FaultFile(memory.name), FaultFile(memory.name)
    assert file.signal >= signal.SIGRTMIN + 12
    assert other.signal == 0  # there is such a file
    assert catches(os.getpid(), file.signal)
    second = FaultFile("job.1.1")
    assert second.signal > file.signal
    send(os.getpid(), threading.get_native_id(), file.signal)
    (written,) = tmp_path.glob(f"*/{memory.name}{FAULT}")
    (own,) = [one for one in parse(written.read_text()) if one.thread == threading.get_ident()]
    assert test_a_signal_makes_it_write.__name__ in [call.function for call in own.calls]
    for one in (file, other, second):
        number = one.signal
        one.close()
        one.close()
        assert not catches(os.getpid(), number)
    assert not catches(2**22 + 1, 46)  # there is no such process
    assert not any(catches(os.getpid(), number) for number in (-5, 0, 65, 1 << 40, 1 << 70))


def test_a_process_whose_name_the_kernel_has_cut_has_a_signal(memory: Memory, cut_name: None) -> None:
    file = FaultFile(memory.name)
    try:
        assert catches(os.getpid(), file.signal)
    finally:
        file.close()


def test_a_thread_that_has_gone_leaves_it_to_the_process(memory: Memory, tmp_path: Path) -> None:
    file = FaultFile(memory.name)
    send(os.getpid(), 2**22 + 1, file.signal)
    (written,) = tmp_path.glob(f"*/{memory.name}{FAULT}")
    until(lambda: parse(written.read_text()), "the signal, which any thread of the process may get")
    file.close()
    with pytest.raises(ProcessLookupError):
        send(2**22 + 1, 0, 0)


def test_a_forked_child_has_none(memory: Memory) -> None:
    file = FaultFile(memory.name)
    handle, number = file._handle, file.signal
    child = os.fork()
    if child == 0:
        try:
            os.fstat(handle)
        except OSError:
            os._exit(int(catches(os.getpid(), number)))
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert catches(os.getpid(), number)
    file.close()


def test_without_a_folder_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("SHARED_MEMORY", "ELSEWHERE"):
        monkeypatch.setattr(records, place, tmp_path / "missing")
    file = FaultFile("job.1.0")
    assert file.signal == 0
    file.close()


def test_other_threads_are_read_as_they_are_written(tmp_path: Path) -> None:
    inside, over = threading.Event(), threading.Event()

    def beside() -> None:
        inside.set()
        over.wait()

    thread = threading.Thread(target=beside)
    thread.start()
    inside.wait()
    with (tmp_path / "written").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        found = {one.thread: one.calls for one in parse(file.read())}
    over.set()
    thread.join()
    assert thread.ident is not None
    assert "beside" in [call.function for call in found[thread.ident]]
    here = next(call for call in found[threading.get_ident()])
    assert here.file == __file__ and here.function == test_other_threads_are_read_as_they_are_written.__name__


words = st.text(st.characters(codec="ascii", categories=["L", "N", "P"], exclude_characters='"'), min_size=1)
calls = st.builds(FrameCall, words, st.integers(0, 10**6), words)


@pytest.mark.slow(COSTLY)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.lists(calls))), st.integers(0))
def test_what_is_written_is_read(threads: list[tuple[int, list[FrameCall]]], cut: int) -> None:
    text = "".join(
        f"Thread {thread:#018x} (most recent call first):\n"
        + "".join(f'  File "{call.file}", line {call.line} in {call.function}\n' for call in calls)
        + "\n"
        for thread, calls in threads
    )
    assert [tuple(one) for one in parse(text)] == threads
    parse(text[: cut % (len(text) + 1)])  # it may be cut anywhere
