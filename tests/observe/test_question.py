"""A question stays until it is taken; who comes meanwhile shares it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.base.environment.files import Folder
from aiodist.observe.question import put, put_before, take
from aiodist.observe.recorder.records import Folders


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folders]:
    with Folders([Folder.open(tmp_path / "own", make=True)]) as made:
        yield made


def test_it_is_shared_until_it_is_taken(folder: Folders) -> None:
    assert take(folder, "a.1.2.3") is put_before(folder, "a.1.2.3") is None
    first = put(folder, "a.1.2.3")
    assert put(folder, "a.1.2.3") == put_before(folder, "a.1.2.3") == first
    assert take(folder, "a.1.2.4") is None
    assert take(folder, "a.1.2.3") == first
    assert folder.names() == []


def test_what_is_in_the_way_is_an_error(folder: Folders, tmp_path: Path) -> None:
    (tmp_path / "own" / "a.1.2.3.asked").mkdir()
    with pytest.raises(OSError):
        take(folder, "a.1.2.3")
    (tmp_path / "own" / "a.1.2.3.asked").rmdir()
