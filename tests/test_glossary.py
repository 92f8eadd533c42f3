"""The glossary: one line a word, in order of subjects, and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "glossary.md"
PACKAGE = Path(__file__).parents[1] / "aiodist"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def test_a_word_has_one_line() -> None:
    words = [row[1] for row in ROW.finditer(PAGE.read_text()) if row[1] not in ("Word", "---")]
    assert len(words) > 40
    assert len(set(words)) == len(words)


def test_files_that_it_names_exist() -> None:
    named = [match[1] for match in re.finditer(r"\[`([^`]+)`\]", PAGE.read_text())]
    assert len(named) > 25
    for name in named:
        module, _, attribute = name.removesuffix(".py").partition(".")
        path = PACKAGE / module
        assert path.is_dir() or any(path.with_suffix(kind).is_file() for kind in (".py", ".pyx")), name
        assert not attribute or re.search(
            rf"^class {attribute}\b", path.with_suffix(".py").read_text(), re.M
        ), name
