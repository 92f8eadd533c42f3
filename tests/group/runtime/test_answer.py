"""A process answers who asks what it does, and nothing that is in the way disturbs it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aiodist.group.runtime.answer import Answerer
from aiodist.observe.question import Mark, put, put_before
from aiodist.observe.recorder import read
from aiodist.observe.recorder.records import STACKS, open_folder
from tests.observe.recorded import Rank, recording

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")

Make = Callable[..., Rank]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    with recording(tmp_path, monkeypatch.setattr) as makes:
        yield makes


def ask(rank: Rank) -> Mark:
    with open_folder() as folder:
        return put(folder, rank.memory.name)


def file_of(tmp_path: Path, rank: Rank) -> Path:
    return tmp_path / f"aiodist-{os.geteuid()}" / f"{rank.memory.name}{STACKS}"


def test_it_answers_once_and_only_who_asks(make: Make, tmp_path: Path) -> None:
    rank = make()
    answerer = Answerer(rank.recorder, rank.memory.name, None, threading.get_ident())
    answerer.answer()
    file = file_of(tmp_path, rank)
    assert not file.exists()
    before_memory = bytes(rank.memory.buffer)
    first = ask(rank)
    assert ask(rank) == first  # one answer will do for both
    assert bytes(rank.memory.buffer) == before_memory
    answerer.answer()
    told = json.loads(file.read_text())
    assert told["questions"] == [list(first)]
    assert any(line.endswith("in test_it_answers_once_and_only_who_asks") for line in told["thread"])
    assert told["tasks"] == []
    with open_folder() as folder:
        assert put_before(folder, rank.memory.name) is None
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.stat().st_ino
    answerer.answer()
    assert file.stat().st_ino == before
    second = ask(rank)
    answerer.answer()
    assert json.loads(file.read_text())["questions"] == [list(first), list(second)]
    answerer.close()
    answerer.close()


def test_it_tells_by_which_thread_and_signal_it_can_be_reached(make: Make) -> None:
    rank = make()
    answerer = Answerer(rank.recorder, rank.memory.name, None, threading.get_ident())
    for _ in range(3):
        answerer.answer()
    about = read(rank.memory.buffer).about
    assert about["watcher"] == threading.get_native_id()
    assert about["thread"] == threading.get_ident()
    assert about["signal"] > 0
    answerer.close()


async def test_tasks_are_told(make: Make, tmp_path: Path) -> None:
    rank = make()
    answerer = Answerer(rank.recorder, rank.memory.name, asyncio.get_running_loop(), threading.get_ident())
    waiting = asyncio.create_task(asyncio.Event().wait(), name="a task")
    await asyncio.sleep(0)
    ask(rank)
    await asyncio.to_thread(answerer.answer)
    told = json.loads(file_of(tmp_path, rank).read_text())
    assert any(line.startswith("a task") for line in told["tasks"])
    waiting.cancel()
    answerer.close()


def test_without_a_folder_or_with_a_link_there_it_does_no_harm(make: Make, tmp_path: Path) -> None:
    rank = make()
    answerer = Answerer(rank.recorder, rank.memory.name, None, threading.get_ident())
    file, elsewhere = file_of(tmp_path, rank), tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    file.symlink_to(elsewhere)
    file.with_name(f"{rank.memory.name}.new{STACKS}").symlink_to(elsewhere)
    question = ask(rank)
    answerer.answer()
    assert elsewhere.read_text() == "mine"
    assert not file.is_symlink() and json.loads(file.read_text())["questions"] == [list(question)]
    ask(rank)
    shutil.rmtree(file.parent)
    answerer.answer()
    assert not file.exists()
    answerer.close()
