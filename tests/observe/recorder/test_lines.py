"""Lines of the program have numbers, once each; there is an end of them, and none is taken for another."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy.testing

import aiodist.base.callers
from aiodist.observe.recorder.lines import MOST, UNKNOWN, Lines

Told = list[tuple[int, str, int, str]]


def lines() -> tuple[Lines, Told]:
    told: Told = []
    return Lines(lambda *line: told.append(line)), told


def made(file: str, name: str = "made") -> Callable[[Callable[[FrameType], int]], int]:
    """A function of a file, which calls what it is given with its own frame."""
    found: dict[str, Any] = {"frame": sys._getframe}
    exec(compile(f"def {name}(call):\n    return call(frame(0))", file, "exec"), found)
    function: Callable[[Callable[[FrameType], int]], int] = found[name]
    return function


def alone(frame: FrameType) -> Any:
    """A frame that nobody has called, but a thread."""
    known = {"f_code": frame.f_code, "f_lasti": frame.f_lasti, "f_lineno": frame.f_lineno, "f_back": None}
    return type("Frame", (), known)


def test_a_line_has_one_number_and_each_instruction_its_own() -> None:
    found, told = lines()
    numbers = []
    for _ in range(3):
        numbers.append(found.find(sys._getframe(0)))  # noqa: PERF401 - a comprehension has a frame
    assert found.find(sys._getframe(0)) == 2
    assert numbers == [1, 1, 1]
    here = "test_a_line_has_one_number_and_each_instruction_its_own"
    assert [(file, function) for _, file, _, function in told] == [(__file__, here)] * 2
    assert told[1][2] == told[0][2] + 1


def test_the_programs_line_is_told_and_not_the_librarys_that_it_has_called() -> None:
    found, told = lines()
    for between in (made(aiodist.base.callers.__file__), made(numpy.testing.__file__)):
        assert between(found.find)
    assert {file for _, file, _, _ in told} == {__file__}


def test_where_no_program_calls_a_librarys_line_is_told_unless_somebody_asked() -> None:
    found, told = lines()
    theirs = made(numpy.testing.__file__, "theirs")
    numbers: list[int] = []

    def look(frame: FrameType) -> int:
        numbers.append(found.find(alone(frame)))
        return 0

    theirs(look)
    theirs(look)
    assert numbers == [1, 1]
    assert told == [(1, numpy.testing.__file__, 2, "theirs")]
    found.asked_by = 7
    theirs(look)
    assert numbers[-1] == 7
    assert found.find(None) == 7


def test_code_that_is_made_as_the_program_goes_has_an_end_and_no_others_number() -> None:
    found, told = lines()
    for number in range(MOST + 50):
        assert (made(f"/made{number}.py")(found.find) == UNKNOWN) is (number >= MOST)
        if number % 500 == 0:
            gc.collect()  # code that is gone leaves its address to other code
    assert [file for _, file, _, _ in told] == [f"/made{number}.py" for number in range(MOST)]
    assert len(found.known) == MOST
    beside = made(numpy.testing.__file__)
    for _ in range(2):
        assert beside(lambda frame: found.find(alone(frame))) == UNKNOWN  # nothing is kept for it
    assert not found._beside


def test_of_threads_that_come_to_a_line_at_once_one_numbers_it() -> None:
    found, told = lines()
    start = threading.Barrier(4)
    numbers: list[int] = []

    def work() -> None:
        start.wait()
        numbers.extend(found.find(sys._getframe(0)) for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == len(set(numbers))


def test_what_is_told_may_look_for_a_line_itself() -> None:
    """As where the collection of garbage runs in between: no thread waits for itself."""
    told: Told = []

    def tell(*line: object) -> None:
        told.append(line)  # type: ignore[arg-type]
        if len(told) == 1:
            found.find(sys._getframe(0))

    found = Lines(tell)
    found.find(sys._getframe(0))
    assert len(told) == 2
