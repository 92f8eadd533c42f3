"""Answering, in a rank's process, when another process of its user asks what it does.

The question is a number in the recorder's memory, the answer a file beside it. Nothing is written, and next
to nothing is done, while nobody asks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

from aiodist.observe.fault import FaultFile
from aiodist.observe.frames import stacks
from aiodist.observe.tasks import task_lines
from aiodist.recorder import Recorder
from aiodist.shm.records import STACKS, open_folder

_log = logging.getLogger("aiodist.observe")


class Answerer:
    """What answers. Make it when the process begins to record, and close it when it ends.

    Args:
        recorder: this rank's.
        name: of the recorder's file.
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
        recorder.tell(signal=self._fault.signal, thread=thread)

    def look(self) -> None:
        """Answer, if somebody asks. Called twice a second by a thread that is not the loop's."""
        if self._watcher != threading.get_native_id():
            self._watcher = threading.get_native_id()
            self._recorder.tell(watcher=self._watcher)
        number = self._recorder.asked()
        if number:
            try:
                self._answer(number)
            except OSError as error:  # no room, or somebody has removed the folder
                _log.debug("cannot answer what this process does: %s", error)

    def close(self) -> None:
        """Let go of the signal, when the thread that looks has ended. May be called twice."""
        self._fault.close()

    def _answer(self, number: int) -> None:
        own, others = stacks(self._thread)
        tasks = task_lines(self._loop) if self._loop is not None else ()
        told: dict[str, Any] = {"number": number, "thread": own, "tasks": tasks, "others": others}
        fresh = f"{self._name}.new{STACKS}"
        with open_folder() as folder:
            handle = folder.fresh(fresh)
            with open(handle, "wb") as file:
                file.write(json.dumps(told).encode())
            folder.rename(fresh, self._name + STACKS)  # so that it is whole when it is read
        self._recorder.answered(number)
