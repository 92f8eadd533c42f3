"""A folder of checkpoints: which of them are whole, their indices, and which are removed.

000007-step-1200/
    rank-00000.safetensors    written by rank 0
    rank-00001.safetensors    …
    index.json                written last: a checkpoint without it does not exist
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodist.errors import CheckpointError

INDEX = "index.json"
FORMAT = 1
_NAME = re.compile(r"(\d{6,})-step-(\d+)")


@dataclass(frozen=True, order=True)
class Found:
    """A checkpoint's folder.

    Attributes:
        number: counts checkpoints of the folder.
        step: that was saved.
        path: of its folder.
        whole: it has an index.
    """

    number: int
    step: int
    path: Path
    whole: bool


def listed(root: Path) -> list[Found]:
    """All checkpoints, whole or not, in the order in which they were begun."""
    if not root.is_dir():
        return []
    found = []
    for path in root.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None:
            found.append(Found(int(match[1]), int(match[2]), path, (path / INDEX).is_file()))
    return sorted(found)


def name_of(number: int, step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"{number:06d}-step-{step}"


def file_of(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank:05d}.safetensors"


def finish(path: Path, index: dict[str, Any]) -> None:
    """Write the index, all at once: the checkpoint is whole then."""
    early = path / f"{INDEX}.early"
    with early.open("w") as file:
        json.dump({"format": FORMAT, **index}, file)
        file.flush()
        os.fsync(file.fileno())
    early.replace(path / INDEX)
    for folder in (path, path.parent):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def index_of(path: Path) -> dict[str, Any]:
    """The index of a checkpoint.

    Raises:
        CheckpointError: it cannot be read, or is of another format.
    """
    try:
        index = json.loads((path / INDEX).read_text())
        version = index["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / INDEX} cannot be read: {error}") from error
    if version != FORMAT:
        raise CheckpointError(
            f"{path} has the format {version}, this version reads {FORMAT}",
            hint="Read it with its own version",
        )
    found: dict[str, Any] = index
    return found


def clean(root: Path, keep: int) -> None:
    """Remove all whole checkpoints but the last ones, and what was begun before them and never finished."""
    whole = [one for one in listed(root) if one.whole]
    kept = whole[-keep:]
    for one in listed(root):
        if one not in kept and one.number < kept[-1].number:
            (one.path / INDEX).unlink(missing_ok=True)  # from here on it does not exist
            shutil.rmtree(one.path)
