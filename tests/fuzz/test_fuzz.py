"""Every target, briefly and with a fixed seed; and that the fuzzers see what is wrong. The long run is
`python -m tests.fuzz --inputs 1000000`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from tests.fuzz import __main__ as command
from tests.fuzz import engine, with_atheris
from tests.fuzz.mutate import framed, headers, join, packed, raw, split, texts
from tests.fuzz.target import Run, Target
from tests.fuzz.targets import TARGETS
from tests.levels import COSTLY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and shares memory")

NAMES = [target.name for target in TARGETS]


def shown(outcome: engine.Outcome) -> list[str]:
    """What crashed, in words."""
    return [f"{crash.where}: {crash.error} ({crash.data!r:.300})" for crash in outcome.crashes.values()]


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_nothing_but_the_documented_errors_comes_out(target: Target) -> None:
    outcome = engine.fuzz(target, 60, 1)
    assert not shown(outcome)
    assert outcome.inputs >= 60
    assert outcome.accepted, "nothing was accepted: are the seeds still valid?"


@pytest.mark.slow("a process that counts branches")
@pytest.mark.skipif(not with_atheris.available(), reason=with_atheris.MISSING)
def test_atheris_drives_the_same_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    outcome = with_atheris.fuzz(TARGETS[0], 300, 1)
    assert not shown(outcome)
    assert outcome.inputs >= 300


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


# ── the fuzzers themselves ───────────────────────────────────────────────────────────────────────────


def parser(parse: Any) -> Target:
    """A target of a parser that may be wrong."""

    @contextmanager
    def opened() -> Iterator[Run]:
        yield parse

    return Target("wrong", "", lambda: [b"a good message", b"another"], opened, (WireError,), (raw,))


def raises(error: BaseException) -> Any:
    def parse(data: bytes) -> str:
        if b"good" not in data:
            raise error
        return ""

    return parse


def takes_memory(data: bytes) -> str:
    bytearray((engine.MEMORY if b"good" not in data else 0) + 300 * len(data))
    return ""


def never_ends(data: bytes) -> str:
    while b"good" not in data:
        pass
    return ""


@pytest.mark.parametrize(
    ("parse", "words"),
    [
        (raises(KeyError("a field")), "a field"),
        (raises(MemoryError()), ""),
        (raises(RecursionError("too deep")), "too deep"),
        (raises(WireError("two\nlines")), "words that cannot be shown"),
        (raises(WireError("\x1b[2J")), "words that cannot be shown"),
        (raises(WireError("x" * 2000)), "words that cannot be shown"),
        (takes_memory, "16 MiB of memory"),
    ],
)
def test_what_is_wrong_is_seen(parse: Any, words: str) -> None:
    outcome = engine.fuzz(parser(parse), 60, 1)
    [crash] = outcome.crashes.values()
    assert words in crash.error
    assert b"good" not in crash.data


@pytest.mark.slow(COSTLY)
def test_what_never_ends_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PATIENCE", 1)
    outcome = engine.Outcome("wrong")
    with engine.judging(parser(lambda data: ""), outcome) as judge:
        judge._run = never_ends
        wrong = judge(b"bad")
    assert "no end" in str(wrong)


@pytest.mark.slow(COSTLY)
def test_what_is_wrong_is_shrunk() -> None:
    def parse(data: bytes) -> str:
        if len(data) >= 20:
            raise KeyError(data)
        return ""

    good = b"a good message"
    for seed in range(4):
        [crash] = engine.fuzz(parser(parse), 2000, seed).crashes.values()
        added = len(crash.data) - len(good)
        once = {crash.data[:at] + crash.data[at + added :] for at in range(len(good) + 1)}
        assert good in once, "one change is enough, so there is one"


@pytest.mark.slow(COSTLY)
def test_an_expected_error_is_none() -> None:
    outcome = engine.fuzz(parser(raises(WireError("no"))), 300, 1)
    assert not outcome.crashes
    assert outcome.refused["WireError"] > 0 < outcome.accepted


def test_the_same_seed_gives_the_same_inputs() -> None:
    def inputs(seed: int) -> list[bytes]:
        seen: list[bytes] = []

        def note(data: bytes) -> str:
            seen.append(data)
            return ""

        engine.fuzz(parser(note), 100, seed)
        return seen

    assert inputs(5) == inputs(5) != inputs(6)


def test_a_failing_input_is_written_and_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "TARGETS", [parser(raises(KeyError("a field")))])
    assert command.main(["--inputs", "50", "--seed", "3", "--failures", str(tmp_path)]) == 1
    [path] = tmp_path.iterdir()
    assert path.name in capsys.readouterr().out
    assert command.main(["--replay", str(path)]) == 1
    assert "KeyError: 'a field'" in capsys.readouterr().err
    monkeypatch.setattr(command, "TARGETS", [parser(lambda data: "")])
    assert command.main(["--replay", str(path)]) == 0


def test_an_unknown_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--target", "nonsense"]) == 2
    assert "objects" in capsys.readouterr().err


def test_parts_come_apart_as_they_were_joined() -> None:
    parts = [b"", b"a", b"bc" * 300]
    assert split(join(parts)) == parts
    assert split(join(parts) + b"xy") == parts
    assert split(b"") == []


CORPUS = [b"", b"x", b'{"a": [1, 2]}', b"\x93\x01\xa1a\xc0", bytes(200), join([b"part", b""])]


@pytest.mark.parametrize("mutator", [raw, packed, texts, headers, framed(packed), framed(raw, 1)])
def test_mutators_take_anything(mutator: Any) -> None:
    made: set[bytes] = set()

    @settings(max_examples=20)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        for one in CORPUS:
            made.add(mutator(data.draw, one, CORPUS))

    check()
    assert all(type(one) is bytes for one in made)
    assert len(made) > len(CORPUS)
