"""The text: the same each time, held-out files apart, and batches that differ between ranks and steps."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training.language import text


def made(folder: Path, count: int = 40) -> dict[str, str]:
    """Files of a line each, by name."""
    files = {f"part{index % 3}/file{index}.py": f"number_{index} = {index}\n" for index in range(count)}
    for name, line in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(line)
    return files


def decoded(codes: text.Codes) -> str:
    return "".join(text.ALPHABET[code] for code in codes)


def test_files_are_in_one_part_as_their_names_say(tmp_path: Path) -> None:
    files = made(tmp_path)
    found = text.corpus(tmp_path)
    parts: tuple[list[str], list[str]] = ([], [])
    for name in sorted(files):
        parts[zlib.crc32(name.encode()) % text.HELD_OUT == 0].append(files[name])
    assert (decoded(found.train), decoded(found.held_out)) == ("".join(parts[0]), "".join(parts[1]))
    assert parts[0]
    assert parts[1]


def test_the_digest_tells_texts_apart(tmp_path: Path) -> None:
    made(tmp_path)
    first = text.corpus(tmp_path)
    assert text.corpus(tmp_path).digest == first.digest
    (tmp_path / "part0" / "file0.py").write_text("number_0 = 1\n")
    assert text.corpus(tmp_path).digest != first.digest


def test_the_package_is_a_text_of_megabytes() -> None:
    found = text.corpus()
    assert found.train.size > 1_000_000
    assert found.held_out.size > 50_000
    assert found.train.max() < len(text.ALPHABET)


@given(st.text())
def test_each_character_has_a_number(said: str) -> None:
    expected = "".join(one if one in text.ALPHABET else "?" for one in said)
    assert decoded(text.encode(said)) == expected


def test_targets_are_the_next_characters() -> None:
    codes = text.encode("abcdefghij")
    inputs, targets = text.windows(codes, np.array([0, 5]), 4)
    assert [decoded(row) for row in inputs.astype(np.uint8)] == ["abcd", "fghi"]
    assert [decoded(row) for row in targets.astype(np.uint8)] == ["bcde", "ghij"]


def test_a_batch_depends_on_rank_and_step_only() -> None:
    codes = text.corpus().train
    batches = {
        (rank, step): text.batch(codes, rank, step, 4, 32)[0] for rank in range(3) for step in range(3)
    }
    assert len({batch.tobytes() for batch in batches.values()}) == 9
    np.testing.assert_array_equal(batches[2, 1], text.batch(codes, 2, 1, 4, 32)[0])


def test_samples_are_spread_over_the_whole_text() -> None:
    codes = np.arange(100, dtype=np.uint8)
    inputs, targets = text.samples(codes, 4, 9)
    assert inputs[:, 0].tolist() == [0, 30, 60, 90]
    assert targets[-1, -1] == 99
