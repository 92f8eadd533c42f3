"""The bytes of a store's files: what is cut off is found, what is damaged is refused."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.rendezvous.durable.journal import HEADER_BYTES, Codec, DamageError, FileKind, JournalHeader

HEADER = JournalHeader(FileKind.log, 7, b"i" * 16, bytes(range(16)))
CODEC = Codec(HEADER.salt)
COMMITS = [[["set", number, b"value" * number]] for number in range(1, 6)]


def log(commits: list[list[list[object]]] = COMMITS, *, marks: bool = True) -> bytes:
    data = HEADER.encode()
    for commit in commits:
        data += CODEC.commit(commit) + (CODEC.mark() if marks else b"")
    return data


def read(data: bytes, *, may_tear: bool = True) -> list[object]:
    return [f.changes for f in CODEC.frames(memoryview(data), may_tear=may_tear) if f.changes]


def test_what_is_written_is_read() -> None:
    assert JournalHeader.decode(HEADER.encode()) == HEADER
    assert len(HEADER.encode()) == HEADER_BYTES
    assert read(log()) == read(log(), may_tear=False) == COMMITS
    frames = list(CODEC.frames(memoryview(log([]) + CODEC.complete()), may_tear=False))
    assert [frame.changes for frame in frames] == [None]


def test_a_log_that_is_cut_anywhere_is_read_up_to_there() -> None:
    whole = log()
    ends = [f.end for f in CODEC.frames(memoryview(whole), may_tear=True) if f.changes]
    for cut in range(HEADER_BYTES, len(whole)):
        assert read(whole[:cut]) == COMMITS[: sum(end <= cut for end in ends)]
        if cut not in [frame.end for frame in CODEC.frames(memoryview(whole), may_tear=True)]:
            if cut == HEADER_BYTES:
                continue
            with pytest.raises(DamageError, match="damaged or cut off"):
                read(whole[:cut], may_tear=False)


def test_a_bit_that_flips_anywhere_is_found() -> None:
    """The mark behind the last commit shows that it was whole once."""
    whole = log()
    last = len(whole) - len(CODEC.mark())
    for at in range(HEADER_BYTES, len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        if at < last:
            with pytest.raises(DamageError, match="whole ones follow it") as caught:
                read(bytes(data))
            assert HEADER_BYTES <= caught.value.offset <= at
        else:
            assert read(bytes(data)) == COMMITS
    for at in range(HEADER_BYTES):
        data = bytearray(whole)
        data[at] ^= 1
        with pytest.raises(DamageError):
            JournalHeader.decode(bytes(data[:HEADER_BYTES]))


def test_without_its_mark_the_last_commit_may_be_a_torn_one() -> None:
    data = bytearray(log(marks=False))
    data[-1] ^= 1
    assert read(bytes(data)) == COMMITS[:-1]
    data[HEADER_BYTES + 20] ^= 1
    with pytest.raises(DamageError):
        read(bytes(data))


def test_blocks_that_never_reached_the_disk_are_a_torn_end() -> None:
    """After a power failure a file may be as long as it should be and hold zeros."""
    torn = log()[: -len(CODEC.mark())]
    commit = len(CODEC.commit(COMMITS[-1]))
    for begin in range(len(torn) - commit, len(torn) - 1):
        data = torn[:begin] + bytes(len(torn) - begin)
        assert read(data) == COMMITS[:-1]


def test_frames_of_another_file_are_no_frames_of_this_one() -> None:
    """What a client stores cannot look like a frame: it does not know the salt."""
    other = Codec(os.urandom(16))
    planted = [[["set", 1, other.commit([["planted"]]) + other.mark()]]]
    data = log(planted)
    assert read(data) == planted
    assert read(data[:-20]) == []
    assert read(log() + other.commit([["x"]])) == COMMITS


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(rng: random.Random, tail: bytes) -> None:
    data = bytearray(log())
    for _ in range(rng.randrange(4)):
        data[rng.randrange(HEADER_BYTES, len(data))] = rng.randrange(256)
    try:
        found = read(bytes(data) + tail)
    except DamageError:
        return
    assert found == COMMITS[: len(found)]


def test_headers_of_other_versions_and_files_are_refused() -> None:
    for data, said in (
        (b"", "cut off"),
        (b"x" * HEADER_BYTES, "no header"),
        (JournalHeader(FileKind.log, 1, b"", b"").encode()[:-1] + b"\0", "checksum"),
    ):
        with pytest.raises(DamageError, match=said):
            JournalHeader.decode(data)
