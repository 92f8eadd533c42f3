"""Whether figures are to be trusted: what /proc says, the decision, and a machine that is busy indeed."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from aiodist.base.environment.processor_load import (
    Sample,
    Taken,
    disturbance,
    disturbance_now,
    doubt,
    family,
    own_seconds,
    process_time,
    processor_time,
    sample,
)
from tests.levels import COSTLY

TICKS = os.sysconf("SC_CLK_TCK")
STAT = """\
cpu  99999 0 0 0 0 0 0 0 0 0
cpu0 100 20 30 1000 50 7 8 40 5 0
cpu1 200 0 100 1000 50 7 8 0 0 0
cpu12 1 1 1 1 1 1 1 1 1 1
intr 1 2 3
"""


def test_processors_of_this_process_alone_count() -> None:
    assert processor_time(STAT, {0, 1}) == (450 / TICKS, 40 / TICKS)
    assert processor_time(STAT, {1}) == (300 / TICKS, 0.0)


def test_a_process_may_have_any_name() -> None:
    numbers = " ".join(str(number) for number in range(3, 53))
    taken = process_time(f"4711 (a) b (c) S {numbers}")
    assert taken == Taken("a) b (c", (13 + 14) / TICKS, parent=3, of_ended=(15 + 16) / TICKS)


def test_a_process_and_all_that_it_started() -> None:
    before = Sample(
        0, 0, 0, {7: Taken("driver", 1.0, 1, 4.0), 8: Taken("rank", 2.0, 7), 9: Taken("make", 9, 1)}
    )
    then = {7: Taken("driver", 1.5, 1, 9.0), 10: Taken("mpirun", 0.25, 7, 0.5), 11: Taken("rank", 2.0, 10)}
    took = family(before, Sample(0, 0, 0, {**then, 12: Taken("make", 8.0, 1)}), 7)
    assert set(took) == {7, 8, 10, 11}
    # 8 had 2 s of its 5 s already: 3 s, and 0.5, 0.25, 0.5 and 2 s of those that live
    assert sum(took.values()) == pytest.approx(6.25)


TOOK = {1: Taken("rank", 10.0), 2: Taken("rank", 10.0), 3: Taken("make", 5.0), 4: Taken("top", 1.0)}
BEFORE = Sample(100.0, 50.0, 3.0, TOOK)


def after(worked: float, stolen: float = 0.0, **took: float) -> Sample:
    """Ten seconds later; `took`: seconds of the processes 3 and 4 meanwhile."""
    grown = {1: Taken("rank", 18.0), 2: Taken("rank", 19.0), 3: Taken("make", 5.0 + took.get("make", 0))}
    return Sample(110.0, 50.0 + worked, 3.0 + stolen, {**TOOK, **grown})


OWN = {1: 8.0, 2: 9.0}


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (after(17.0), ""),
        (after(18.9), ""),  # 1.9 s of 20
        (after(16.0), ""),  # ticks are coarse
        (after(25.0, make=8.0), "other processes took 40 % of the processors' time, most of it make."),
        (after(21.0), "other processes took 20 % of the processors' time."),  # in another container
        (after(17.0, stolen=3.0), "the hypervisor gave 15 % of it to other machines."),
        (
            after(19.0, 2.0, make=2.0),
            "took 10 % of the processors' time, most of it make, and the hypervisor",
        ),
    ],
)
def test_decision(then: Sample, words: str) -> None:
    said = doubt(disturbance(BEFORE, then, OWN, cores=2, load=3.14))
    assert words in said
    assert bool(said) is bool(words)
    if words:
        assert said.startswith("this machine is busy (load 3.1 on 2 cores): ")
        assert said.endswith("Figures measured meanwhile are not to be trusted")


def test_names_are_fit_for_a_terminal() -> None:
    then = Sample(110.0, 90.0, 3.0, {9: Taken("\x1b[2Jevil" * 20, 20.0)})
    assert "\x1b" not in doubt(disturbance(BEFORE, then, {}, cores=1, load=0.0))


@pytest.mark.slow(COSTLY)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what others took")
def test_a_busy_machine() -> None:
    """Another process takes processor time; this one's own is not counted."""
    first, spent = sample(), own_seconds()
    assert first is not None
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            while own_seconds() - spent < 0.1:  # both work
                pass
            while True:
                second = sample()
                assert second is not None
                if second.took[busy.pid].seconds > 0.25:
                    break
                time.sleep(0.01)
        finally:
            busy.kill()
    assert second.took[busy.pid].parent == os.getpid()
    mine = own_seconds() - spent
    seen = disturbance(first, second, {os.getpid(): mine}, cores=1, load=os.getloadavg()[0])
    assert seen.others > 0
    assert second.worked - first.worked - mine > 0.1  # its quarter of a second, as coarse as ticks are
    # With it, as one of the family, next to nothing is left.
    both = family(first, second, os.getpid())
    assert sum(both.values()) - mine > 0.1
    assert disturbance_now(0.0) is not None
