"""Answering, in a rank's process, when another process of its user asks what it does.

The question is a file beside the recorder's (`question`), the answer another one. Nothing is written, and
next to nothing is done, while nobody asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections import deque
from typing import Any

from aiodist.group.runtime.tasks import task_lines
from aiodist.observe.fault import FaultFile
from aiodist.observe.frames import stacks
from aiodist.observe.question import Mark, take
from aiodist.observe.recorder import Recorder
from aiodist.observe.recorder.records import STACKS, Folders, open_folder

_KEPT = 16
"""Questions that an answer tells of, the last ones: who has asked before reads the later answer, too."""

_log = logging.getLogger("aiodist.observe")


class Answerer:
    """What answers. Make it when the process begins to record, and close it when it ends.

    Args:
        recorder: this rank's.
        name: of the recorder's file; '': it has none, and nobody can ask.
        loop: whose tasks are told; None: of none.
        thread: the loop's (`threading.get_ident`).
    """

    def __init__(
        self, recorder: Recorder, name: str, loop: asyncio.AbstractEventLoop | None, thread: int
    ) -> None:
        self._recorder = recorder
        self._name = name
        self._loop = loop
        self._thread = thread
        self._watcher = 0
        self._fault = FaultFile(name)
        self._questions: deque[Mark] = deque(maxlen=_KEPT)
        self._folder: Folders | None = None
        if name:
            with contextlib.suppress(OSError):  # nobody can ask then
                self._folder = open_folder()
        recorder.tell(signal=self._fault.signal, thread=thread)

    def answer(self) -> None:
        """Answer, if somebody asks. Called ten times a second by a thread that is not the loop's."""
        if self._watcher != threading.get_native_id():
            self._watcher = threading.get_native_id()
            self._recorder.tell(watcher=self._watcher)
        if self._folder is None:
            return
        try:
            question = take(self._folder, self._name)
            if question is not None:
                self._questions.append(question)
                self._answer(self._folder)
        except OSError as error:  # no room, or somebody has removed the folder
            _log.debug("cannot answer what this process does: %s", error)

    def close(self) -> None:
        """Let go of the signal, when the thread that looks has ended. May be called twice."""
        self._fault.close()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _answer(self, folder: Folders) -> None:
        own, others = stacks(self._thread)
        tasks = task_lines(self._loop) if self._loop is not None else ()
        found: dict[str, Any] = {
            "questions": list(self._questions),
            "thread": own,
            "tasks": tasks,
            "others": others,
        }
        fresh = f"{self._name}.new{STACKS}"
        handle = folder.fresh(fresh)
        with open(handle, "wb") as file:
            file.write(json.dumps(found).encode())
        folder.rename(fresh, self._name + STACKS)  # so that it is whole when it is read
        self._fault.trim()
