"""Whole lines out of any chunks; last words out of any stderr."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.launch.worker.lines import MAX_LINE, LastWords, LineSplitter, Piece


def split(chunks: list[bytes], *, in_place: bool = False) -> list[Piece]:
    splitter = LineSplitter(in_place=in_place)
    pieces = [piece for chunk in chunks for piece in splitter.feed(chunk)]
    return pieces + splitter.finish()


def test_lines_and_a_last_one_without_newline() -> None:
    assert split([b"one\n\ntwo", b" more\nthree"]) == [
        Piece(b"one", False),
        Piece(b"", False),
        Piece(b"two more", False),
        Piece(b"three", False),
    ]


def test_carriage_returns_are_lines_when_not_in_place() -> None:
    assert split([b"\r 10%\r 20%\r 30%\ndone\r\n"]) == [
        Piece(b" 10%", False),
        Piece(b" 20%", False),
        Piece(b" 30%", False),
        Piece(b"done", False),
    ]


def test_carriage_returns_are_live_in_place() -> None:
    assert split([b"\r 10%\r 20%", b"\r 30%\n"], in_place=True) == [
        Piece(b" 10%", True),
        Piece(b" 20%", True),
        Piece(b" 30%", False),
    ]


def test_a_live_line_stays_when_its_newline_comes_apart() -> None:
    assert split([b"50%\r", b"\nnext\n"], in_place=True) == [
        Piece(b"50%", True),
        Piece(b"50%", False),
        Piece(b"next", False),
    ]


def test_a_live_line_stays_at_the_end() -> None:
    assert split([b"100%\r"], in_place=True) == [Piece(b"100%", True), Piece(b"100%", False)]


def test_an_endless_line_is_cut() -> None:
    pieces = split([b"x" * (2 * MAX_LINE + 5)])
    assert [len(piece.text) for piece in pieces] == [MAX_LINE, MAX_LINE, 5]


@given(st.lists(st.binary(max_size=12)), st.booleans())
def test_how_the_bytes_are_chunked_does_not_matter(chunks: list[bytes], in_place: bool) -> None:
    assert split(chunks, in_place=in_place) == split([b"".join(chunks)], in_place=in_place)


@given(st.lists(st.text(alphabet="ab\r\n", max_size=6)))
def test_no_visible_byte_is_lost(chunks: list[str]) -> None:
    data = [chunk.encode() for chunk in chunks]
    visible = b"".join(data).replace(b"\r", b"").replace(b"\n", b"")
    assert b"".join(piece.text for piece in split(data)) == visible


def words_of(text: str) -> LastWords:
    words = LastWords()
    for line in text.splitlines():
        words.add(line.encode())
    return words


TRACE = """noise
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f()
{error}
"""


def test_excerpt_begins_at_the_traceback() -> None:
    excerpt = words_of(TRACE.format(error="ValueError: no") + "\n").excerpt()
    assert excerpt[0] == "Traceback (most recent call last):"
    assert excerpt[-1] == "ValueError: no"


def test_excerpt_of_a_chain_begins_at_its_cause() -> None:
    text = (
        "Traceback (most recent call last):\n  old and unrelated\nKeyError: 0\nwent on\nand on\nand on\n"
        "Traceback (most recent call last):\n  one\nOSError: 1\n"
        "\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n  two\nValueError: 2\n"
    )
    excerpt = words_of(text).excerpt()
    assert excerpt[1] == "  one"
    assert excerpt[-1] == "ValueError: 2"


def test_excerpt_of_a_crash_and_without_any_trace() -> None:
    crash = "hello\nFatal Python error: Segmentation fault\n\nCurrent thread (most recent call first):\n  x"
    assert words_of(crash).excerpt()[0] == "Fatal Python error: Segmentation fault"
    assert words_of("\n".join(map(str, range(100)))).excerpt() == tuple(map(str, range(90, 100)))
    assert words_of("").excerpt() == ()


def test_excerpt_is_shortened_in_the_middle() -> None:
    frames = "\n".join(f"  frame {i}" for i in range(200))
    excerpt = words_of(f"Traceback (most recent call last):\n{frames}\nRecursionError: deep").excerpt(40)
    assert len(excerpt) == 40
    assert excerpt[0].startswith("Traceback") and excerpt[-1] == "RecursionError: deep"
    assert any("lines left out" in line for line in excerpt)


@pytest.mark.parametrize(
    ("error", "symptom"),
    [
        ("aiodist.PeerLost: lost rank 1: gone (in all_reduce #3 of group 'world')", True),
        ("aiodist.PeerLost: lost rank 1: gone", True),
        ("aiodist.GroupAborted: rank 1 aborted the group: boom", True),
        ("aiodist.CollectiveMismatch: ranks disagree", False),
        ("aiodist.CallUnknown: calling f on rank 1: rank 1 has left the job", True),
        ("aiodist.CallTimeout: calling f on rank 1: no answer within 3 s", False),
        ("ValueError: PeerLost is only in the text", False),
        ("KeyboardInterrupt", False),
        ("PeerLost", True),
    ],
)
def test_symptoms(error: str, symptom: bool) -> None:
    words = words_of(TRACE.format(error=error))
    assert words.symptom(1) is symptom
    assert words.error == error.removeprefix("aiodist.")


@pytest.mark.parametrize("code", [1, 5, -15])
@pytest.mark.parametrize("behind", ["", "disk full", "config missing: a.toml", "WARNING:root:going on"])
def test_a_traceback_that_was_logged_is_no_symptom_of_what_came_later(code: int, behind: str) -> None:
    logged = "ERROR:root:lost a member, going on\n" + TRACE.format(
        error="aiodist.PeerLost: lost rank 1: gone"
    )
    assert words_of(logged + behind + "\n").symptom(code) is (not behind and code != 5)


@pytest.mark.parametrize("code", [1, 5, -15])
def test_the_one_line_of_an_error_that_nobody_has_caught_is_a_symptom_whatever_follows(code: int) -> None:
    line = "aiodist: a.py:1 in f: PeerLost: lost rank 1: gone\n"
    assert words_of(line).symptom(code) and words_of(line + "at exit\n").symptom(code)


def test_symptoms_as_torch_tells_them() -> None:
    told = "DistBackendError: PeerLost: lost rank 1: gone"
    bare = TRACE.format(error=f"torch.distributed.{told}")
    by_cpp = TRACE.format(error=f"RuntimeError: Got the following error: {told}\n\nAt:\n  a.py(279): f\n")
    for text in (bare, by_cpp):
        prefixed = "".join(f"[rank0]: {line}\n" if line else "\n" for line in text.splitlines())
        for words in (words_of(text), words_of(prefixed)):
            assert words.symptom(1)
            assert words.error.endswith(told)
            assert words.excerpt()[0] == "Traceback (most recent call last):"
    assert not words_of(TRACE.format(error="RuntimeError: DistBackendError: it said PeerLost: no")).symptom(1)


def test_no_traceback_is_no_symptom() -> None:
    words = words_of("PeerLost: only a log line")
    assert not words.symptom(1)
    assert words.error == ""


def test_a_group_of_exceptions_ends_in_its_innermost() -> None:
    text = (
        "  + Exception Group Traceback (most recent call last):\n"
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "a.py", line 1, in f\n'
        "    | aiodist.PeerLost: lost rank 1: gone\n"
        "    +------------------------------------\n"
    )
    assert words_of(text).error == "PeerLost: lost rank 1: gone"
    assert words_of(text).symptom(1) and not words_of(text + "went on\n").symptom(1)


@pytest.mark.parametrize(
    "kind", ["PeerLost", "GroupAborted", "CollectiveTimeout", "CollectiveMismatch", "CallUnknown"]
)
def test_the_one_line_of_an_error_of_another_rank(kind: str) -> None:
    words = LastWords()
    words.add(b"step 3", f"aiodist: a b/train.py:14 in step: {kind}: lost rank 2: it ended. Look".encode())
    assert words.symptom(1) and words.error == f"{kind}: lost rank 2: it ended. Look"
    assert words.excerpt() == (f"aiodist: a b/train.py:14 in step: {kind}: lost rank 2: it ended. Look",)
    after = LastWords()
    after.add(*words._lines, b"Traceback (most recent call last):", b"ValueError: worse")
    assert (after.symptom(1), after.error) == (False, "ValueError: worse")


def test_what_the_launcher_itself_says_is_no_such_line() -> None:
    words = LastWords()
    words.add(b"aiodist run: rank 2 failed: exit code 1", b"aiodist: something: PeerLoss: x")
    assert not words.symptom(1) and words.error == ""


def test_a_timeout_of_the_rank_that_was_waited_for_is_its_own() -> None:
    words = LastWords()
    trace = [b"Traceback (most recent call last):", b'  File "train.py", line 3, in main']
    told = b"rank 0 gave up after 2 s: it waited for rank 2, this process (in"
    words.add(*trace, b"aiodist.CollectiveTimeout: " + told)
    assert not words.symptom(1)
    words.add(*trace, b"aiodist.CollectiveTimeout: no completion within 2 s: rank 2 had not arrived (in")
    assert words.symptom(1)
