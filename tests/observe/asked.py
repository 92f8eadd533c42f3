"""A rank that can be asked, and does what its second argument says: a program of its own.

python asked.py FOLDER tasks|blocked|held|searching|without
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

from aiodist.group.runtime.answer import Answerer
from aiodist.observe.recorder import Recorder, records
from aiodist.observe.recorder.records import Memory

KEY = "0123456789ab"


async def leaf(event: asyncio.Event) -> None:
    await event.wait()


async def forever() -> None:
    event = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf(event), name="the leaf")
        ready()


async def blocked() -> None:
    ready()
    signal.pause()


async def held() -> None:
    ready()
    ctypes.PyDLL(None).pause()


async def searching() -> None:
    ready()
    re.match("(a*)*b", "a" * 100)


def ready() -> None:
    print("ready", flush=True)


def main() -> None:
    folder, what = sys.argv[1:]
    records.SHARED_MEMORY = Path(folder)
    memory = Memory(KEY)
    recorder = Recorder(memory.buffer, os.getpid(), time.monotonic, time.time())
    recorder.take_part(1, 2, 0)
    loop = None if what == "without" else asyncio.new_event_loop()
    answerer = Answerer(recorder, memory.name, loop, threading.get_ident())
    over, looked = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            recorder.flush()
            answerer.answer()
            looked.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    looked.wait()
    if loop is None:
        ready()
        sys.stdin.read()
        over.set()
        thread.join()
        answerer.close()
        memory.remove()
    else:
        jobs = {"tasks": forever, "blocked": blocked, "held": held, "searching": searching}
        loop.run_until_complete(jobs[what]())


if __name__ == "__main__":
    main()
