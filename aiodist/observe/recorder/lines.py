"""The lines of the program from which operations come, numbered as they are seen first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType, FrameType

from aiodist.base.callers import Whose, whose

MOST = 2000  # that are told apart; a program that makes code as it goes has no end of them
UNKNOWN = 0  # the number of all others, and of operations that no line has issued

# In place of numbers, for code that is not the program's.
_OURS: dict[int, int] = {}
_LOOPS: dict[int, int] = {}
_LIBRARYS: dict[int, int] = {}
_STANDS_FOR = {Whose.ours: _OURS, Whose.loop: _LOOPS, Whose.library: _LIBRARYS}


class Lines:
    """The numbers of lines, by code object and instruction: a known one costs a look at two dicts.

    Args:
        tell: called once with each number, its file, line and function.

    Attributes:
        known: numbers by instruction (`f_lasti`), by the id of the code object, which is kept alive.
        asked_by: the number of the line that another thread has asked from, while the loop does as asked.
    """

    def __init__(self, tell: Callable[[int, str, int, str], object]) -> None:
        self.known: dict[int, dict[int, int]] = {}
        self.asked_by = UNKNOWN
        self._tell = tell
        self._beside: dict[int, dict[int, int]] = {}  # of libraries, where no program calls them
        self._codes: list[CodeType] = []
        self._count = 0
        self._places: list[tuple[str, int]] = [("", 0)]
        self._gate = threading.RLock()  # what collects garbage may run inside

    def find(self, frame: FrameType | None) -> int:
        """The number of the innermost line that is the program's; if there is none, of a library's.

        From any thread.
        """
        library = None
        while frame is not None:
            code = frame.f_code
            numbers = self.known.get(id(code))
            if numbers is None:
                numbers = self._met(code)
            if numbers is _LOOPS:
                break
            if numbers is _LIBRARYS:
                library = library or frame
            elif numbers is not _OURS:
                number = numbers.get(frame.f_lasti)
                return self._number(frame, numbers) if number is None else number
            frame = frame.f_back
        if self.asked_by or library is None or id(library.f_code) not in self.known:
            return self.asked_by
        numbers = self._beside.setdefault(id(library.f_code), {})
        number = numbers.get(library.f_lasti)
        return self._number(library, numbers) if number is None else number

    def place(self, number: int) -> tuple[str, int]:
        """The file and the line of a number; ('', 0) of `UNKNOWN`."""
        return self._places[number]

    def _met(self, code: CodeType) -> dict[int, int]:
        """The numbers of code that is seen first."""
        numbers = _STANDS_FOR.get(whose(code.co_filename))
        if numbers is None:
            numbers = {}
        if len(self._codes) < MOST:
            self._codes.append(code)
            self.known[id(code)] = numbers
        return numbers

    def _number(self, frame: FrameType, numbers: dict[int, int]) -> int:
        with self._gate:
            if self._count >= MOST:
                return UNKNOWN
            number = numbers.get(frame.f_lasti)
            if number is None:
                number = self._count = self._count + 1
                self._places.append((frame.f_code.co_filename, frame.f_lineno))
                self._tell(number, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
                numbers[frame.f_lasti] = number
            return number
