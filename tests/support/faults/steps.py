"""Counting the calls of aiodist's own functions in a process, to do something at exactly one of them.

With every count from 1 to the last one tried in turn, whatever can stand between two calls has stood there:
a crash "at every protocol step" needs no hooks in the protocol.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import aiodist

_PACKAGE = str(Path(aiodist.__file__).parent) + "/"
_OUTSIDE = _PACKAGE + "testing/"


class Steps:
    """A watch that calls `act` once, in the thread that comes to the step, before its first line.

    Args:
        point: 'module:qualified name' of a function ('aiodist.group.control.plane:ControlPlane.attach'); ''
            means any function of aiodist but those of `aiodist.testing`. A generator's or coroutine's
            resumptions count as calls, too.
        count: at which call.
        act: what to do.

    Attributes:
        seen: calls so far.
    """

    def __init__(self, point: str, count: int, act: Callable[[], object]) -> None:
        self.seen = 0
        self._count = count
        self._act = act
        module, _, self._name = point.partition(":")
        self._path = _PACKAGE + module.removeprefix("aiodist.").replace(".", "/") if point else ""
        self._ours: dict[CodeType, bool] = {}

    def watch(self) -> None:
        """Begin, in this thread and in those that start later."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def stop(self) -> None:
        """Never act again; stop looking, in this thread and in those that start later."""
        self._count = -1
        threading.setprofile(None)
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = self._counts(code)
        if ours:
            self.seen += 1
            if self.seen == self._count:
                self._act()

    def _counts(self, code: CodeType) -> bool:
        path = code.co_filename
        if not self._path:
            return path.startswith(_PACKAGE) and not path.startswith(_OUTSIDE)
        return code.co_qualname == self._name and path in (f"{self._path}.py", f"{self._path}/__init__.py")
