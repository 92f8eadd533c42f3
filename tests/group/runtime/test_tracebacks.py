"""How an exception that nobody has caught is printed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiodist.base.errors import (
    CallTimeout,
    CallUnknown,
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupBroken,
    PeerLost,
    Tampered,
    UsageError,
)
from aiodist.group.runtime import tracebacks
from aiodist.group.runtime.tracebacks import interrupted_at, odd_ones, of_another_rank, rendered
from tests.levels import COSTLY

HERE = Path(__file__).name


def broken(error: GroupBroken, reader: int | None = 0) -> GroupBroken:
    """As a Work raises it."""
    error.reader = reader
    return error.during("all_reduce", 5, "world")


def caught(raises: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as info:
        raises()
    return info.value


def raises(error: BaseException) -> Callable[[], object]:
    def does() -> None:
        raise error

    return does


def unknown(cause: BaseException | None) -> CallUnknown:
    """The error of a call that a rank has not answered."""
    error = CallUnknown(2, "load", "rank 2 has left the job" if cause is None else str(cause))
    error.__cause__ = cause
    return error


SAID = {0: "all_reduce()", 1: "all_reduce()", 2: "barrier()"}


@pytest.mark.parametrize(
    ("error", "other"),
    [
        (broken(PeerLost([2], "process 9 ended")), True),
        (unknown(None), True),
        (unknown(PeerLost([2], "process 9 ended")), True),
        (unknown(Tampered()), False),
        (CallTimeout(2, "load", "no answer within 3 s"), False),
        (broken(GroupAborted(2, "no more")), True),
        (broken(GroupAborted(0, "no more")), False),
        (broken(CollectiveTimeout(2, [2])), True),
        (broken(CollectiveTimeout(2, [], [2])), True),
        (broken(CollectiveTimeout(2, [0])), False),
        (broken(CollectiveTimeout(2, [2]), None), False),
        (broken(CollectiveTimeout(2)), False),
        (broken(CollectiveMismatch(SAID)), True),
        (broken(CollectiveMismatch(SAID), 2), False),
        (broken(CollectiveMismatch({0: "a()", 1: "b()"})), False),
        (broken(GroupBroken("failed inside")), False),
        (ValueError("bad"), False),
    ],
)
def test_which_errors_are_another_ranks(error: BaseException, other: bool) -> None:
    assert of_another_rank(error) == other


def test_who_is_odd() -> None:
    assert odd_ones(SAID) == {2}
    assert odd_ones({0: "a", 1: "b"}) == {0, 1}
    assert odd_ones({0: "a", 1: "a", 2: "b", 3: "b"}) == {0, 1, 2, 3}
    assert odd_ones({0: "a", 1: "a"}) == set()


@pytest.mark.parametrize("cause", [None, PeerLost([2], "process 9 ended")])
def test_a_call_that_another_rank_did_not_answer_is_one_line(cause: PeerLost | None) -> None:
    error = caught(raises(unknown(cause)))
    text = rendered(error, error.__traceback__)
    assert text.count("\n") == 1 and " in does: CallUnknown: calling load on rank 2: " in text


def test_an_error_of_another_rank_is_one_line_with_the_programs_place() -> None:
    error = caught(raises(broken(PeerLost([2], "process 9\nended"))))
    text = rendered(error, error.__traceback__)
    assert text.count("\n") == 1
    assert f"{HERE}:" in text and " in does: PeerLost: lost rank 2: process 9 ended" in text
    assert text.startswith("aiodist: ") and "(in all_reduce #5 of group 'world')" in text


def test_several_in_a_group_of_exceptions_are_a_line_each() -> None:
    errors = [caught(raises(broken(PeerLost([rank], "it ended")))) for rank in (1, 1, 2)]
    group = BaseExceptionGroup("tasks", [errors[0], BaseExceptionGroup("more", errors[1:])])
    text = rendered(group, None)
    assert text.count("lost rank 1") == 1 and text.count("lost rank 2") == 1
    mixed = BaseExceptionGroup("tasks", [errors[0], ValueError("bad")])
    text = rendered(mixed, None)
    assert "ValueError: bad" in text and "PeerLost: lost rank 1" in text


def test_notes_are_seen_too() -> None:
    error = broken(PeerLost([1], "it ended"))
    error.add_note("awaits were forgotten")
    assert "awaits were forgotten" in rendered(error, None)


def test_what_the_program_was_handling_is_seen_too() -> None:
    def does() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise broken(PeerLost([1], "it ended")) from error

    error = caught(does)
    text = rendered(error, error.__traceback__)
    assert "KeyError: 'first'" in text and "PeerLost: lost rank 1" in text


def test_frames_of_the_library_and_of_asyncio_are_left_out() -> None:
    import numpy as np

    from aiodist.testing.cluster import run_cluster

    async def part(pg: object) -> None:
        await pg.all_reduce(np.ones(3, np.float32), op="sum")  # type: ignore[attr-defined]

    error = caught(lambda: asyncio.run(run_cluster(1, part)))
    text = rendered(error, error.__traceback__)
    assert "UsageError: op must be a ReduceOp" in text
    assert "aiodist/group" not in text and "asyncio/" not in text
    assert f"{HERE}" in text and "in part" in text


def test_frames_of_libraries_on_the_way_to_us_are_left_out() -> None:
    from aiodist.net.wire import bounded

    call: dict[str, Any] = {}
    ours: dict[str, Any] = {"E": UsageError}
    exec(compile("def submit(function): function()", json.__file__, "exec"), call)
    exec(compile("def refuse():\n    raise E('no')", bounded.__file__, "exec"), ours)

    def step() -> None:
        call["submit"](ours["refuse"])

    error = caught(step)
    text = rendered(error, error.__traceback__)
    assert "in step" in text and json.__file__ not in text and bounded.__file__ not in text


TORCH_CALL = "def all_reduce(wait): wait()"
WORK = "def wait():\n    raise error"


@pytest.mark.parametrize("own", [False, True], ids=["another's", "its own"])
def test_torchs_error_is_printed_as_the_one_for_which_it_stands(own: bool) -> None:
    torch = pytest.importorskip("torch")
    from aiodist.integrations.torch import work

    said = {0: "all_reduce(float32[3])", 1: "all_reduce(float32[4])", 2: "all_reduce(float32[3])"}
    ours = broken(CollectiveMismatch(said), reader=1 if own else 0)
    call: dict[str, Any] = {}
    wait: dict[str, Any] = {"error": work.as_torchs(ours)}
    of_torch = os.path.join(os.path.dirname(torch.__file__), "distributed", "x.py")
    exec(compile(TORCH_CALL, of_torch, "exec"), call)
    exec(compile(WORK, work.__file__, "exec"), wait)

    def step() -> None:
        call["all_reduce"](wait["wait"])

    error = caught(step)
    text = rendered(error, error.__traceback__)
    assert "in step" in text and "/torch/" not in text and "aiodist/integrations" not in text
    assert "direct cause" not in text
    assert text.startswith("Traceback" if own else "aiodist: ")
    assert "CollectiveMismatch: ranks disagree" in text and text.count("ranks disagree") == 1
    error.add_note("of the program's")
    assert "of the program's" in rendered(error, error.__traceback__)


def test_what_goes_wrong_inside_keeps_its_frames() -> None:
    from aiodist.net.wire import bounded

    error = caught(lambda: exec(compile("raise KeyError(1)", bounded.__file__, "exec")))
    assert bounded.__file__ in rendered(error, error.__traceback__)
    wanted = caught(lambda: exec(compile("raise E('no')", bounded.__file__, "exec"), {"E": UsageError}))
    assert bounded.__file__ not in rendered(wanted, wanted.__traceback__)


def test_ctrl_c_shows_the_programs_line() -> None:
    async def waits() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(100)

    error = caught(lambda: asyncio.run(waits()))
    assert isinstance(error, KeyboardInterrupt)
    assert interrupted_at(error).endswith(" in waits: await asyncio.sleep(100)")
    assert rendered(error, error.__traceback__).startswith("interrupted at ")
    assert interrupted_at(KeyboardInterrupt()) == "before any of its lines"


def test_ctrl_c_while_the_program_handles_an_error_names_the_line_where_it_was() -> None:
    def tries() -> None:
        raise ConnectionError("no")

    def retries() -> None:
        try:
            tries()
        except ConnectionError:
            signal.raise_signal(signal.SIGINT)

    assert interrupted_at(caught(retries)).endswith(" in retries: signal.raise_signal(signal.SIGINT)")


def test_what_stderr_does_not_take_is_printed_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException] = []
    monkeypatch.setattr(sys, "__excepthook__", lambda kind, value, trace: shown.append(value))
    error = ValueError("ü")
    with io.TextIOWrapper(io.BytesIO(), "ascii") as narrow:
        monkeypatch.setattr(sys, "stderr", narrow)
        tracebacks.show(ValueError, error, None)
    tracebacks.show(ValueError, error, None)  # it is closed now
    assert shown == [error, error]


@pytest.mark.parametrize(("full", "mine"), [("", False), ("full", False), ("", True)])
def test_the_hook_is_for_programs_that_have_none(
    full: str, mine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(*_: object) -> None:
        """Do nothing."""

    monkeypatch.setattr(sys, "excepthook", own if mine else sys.__excepthook__)
    monkeypatch.setenv(tracebacks.VARIABLE, full)
    before = sys.excepthook
    tracebacks.install()
    assert (sys.excepthook is tracebacks.show) == (not full and not mine)
    assert sys.excepthook in (before, tracebacks.show)
    tracebacks.install()


def test_an_exception_without_a_text_is_printed_by_python(capsys: pytest.CaptureFixture[str]) -> None:
    class Bad(GroupAborted):
        def __str__(self) -> str:
            raise RuntimeError

    error = Bad(1, "x")
    tracebacks.show(Bad, error, None)
    assert "Bad" in capsys.readouterr().err


PROGRAM = """
import asyncio, json, sys
import aiodist as dist

async def main():
    async with dist.init_process_group(world_size=1) as pg:
        await pg.all_reduce([1, 2], out=3)

asyncio.run(main())
"""


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("full", ["", "full"])
def test_a_program_without_a_launcher(full: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    env = os.environ | {tracebacks.VARIABLE: full}
    ended = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "UsageError" in ended.stderr
    assert ("aiodist/group" in ended.stderr) == bool(full), json.dumps(ended.stderr)
    assert 'train.py", line 7, in main' in ended.stderr
