"""A folder of checkpoints: which of them are whole, their indices, and which are removed.

000007-step-1200/
    rank-00000.safetensors    written by rank 0
    rank-00001.safetensors    …
    index.json                written last: a checkpoint without it does not exist
.000006-step-1100.gone/       what is being removed

The folder is one that the user has named: others may write to it. So nothing in it is written, made or
removed along a link.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodist.base.environment.files import Folder
from aiodist.base.errors import CheckpointError
from aiodist.base.sanitize import one_line
from aiodist.ddp.checkpoint.files import regular
from aiodist.ddp.checkpoint.index import MOST_BYTES, OTHER, checked, sealed
from aiodist.net.wire.bounded_json import load_json

logger = logging.getLogger("aiodist.ddp.checkpoint")

INDEX = "index.json"
_NAME = re.compile(r"([0-9]{6,18})-step-([0-9]{1,19})")  # what fits into 64 bits
_GONE = re.compile(rf"\.{_NAME.pattern}\.gone")


@dataclass(frozen=True, order=True)
class FoundCheckpoint:
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


def is_whole(path: Path) -> bool:
    """Whether a folder has an index."""
    try:
        return (path / INDEX).is_file()
    except OSError:  # of a folder that may not be entered
        return False


def _named(root: Path) -> list[FoundCheckpoint]:
    """All entries that have the name of a checkpoint, whole or not."""
    if not root.is_dir():
        return []
    with Folder.named(root) as folder:
        names = folder.names()
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            path = root / name
            found.append(FoundCheckpoint(int(match[1]), int(match[2]), path, is_whole(path)))
    return sorted(found)


def listed(root: Path) -> list[FoundCheckpoint]:
    """All checkpoints, whole or not, in the order in which they were begun. Links and files are none."""
    return [one for one in _named(root) if one.path.is_dir() and not one.path.is_symlink()]


def next_number(root: Path) -> int:
    """A number that nothing in the folder has."""
    return 1 + max((one.number for one in _named(root)), default=0)


def begin(path: Path) -> None:
    """Make a checkpoint's folder, and the folder of checkpoints, where they are missing.

    Raises:
        OSError: it cannot be made, or what has its name is a link.
    """
    with Folder.named(path.parent, make=True) as root:
        root.folder(path.name, make=True).close()


def name_of(number: int, step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"{number:06d}-step-{step}"


def finish(path: Path, index: dict[str, Any]) -> None:
    """Write the index, all at once: the checkpoint is whole then. Where this fails it is not."""
    text = json.dumps(sealed(index))
    if len(text) > MOST_BYTES:
        raise CheckpointError(
            f"its index has {len(text)} bytes, more than are read again ({MOST_BYTES})",
            hint="Save fewer, larger arrays: an index has a line for each, and for each rank's part",
        )
    with Folder.named(path.parent) as root, root.folder(path.name) as folder:
        try:
            folder.replace(INDEX, text, sync=True)
            root.sync()
        except OSError:
            with contextlib.suppress(OSError):
                folder.remove(INDEX)  # it may have its name by now
            raise


def discard(path: Path) -> None:
    """Remove a checkpoint, whole or not. From the first moment it does not exist.

    Raises:
        OSError: it cannot be removed; `sweep` tries again.
    """
    with Folder.named(path.parent) as root:
        gone = f".{path.name}.gone"
        root.remove_tree(gone)
        with contextlib.suppress(FileNotFoundError):
            root.rename(path.name, gone)  # whoever still writes to it makes it whole no more
            root.remove_tree(gone)


def sweep(root: Path) -> None:
    """Remove what was begun and never finished: by a save that failed, or by processes that are dead.

    Nobody may be writing a checkpoint. What cannot be removed is logged, and tried again by the next save.
    """
    for one in listed(root):
        if not one.whole:
            _discarded(one.path)
    if root.is_dir():
        with Folder.named(root) as folder:
            for name in folder.names():
                if _GONE.fullmatch(name) and stat.S_ISDIR(folder.stat(name).st_mode):
                    _removed(folder, name)


def _discarded(path: Path) -> None:
    try:
        discard(path)
    except OSError as error:
        logger.warning("an old checkpoint could not be removed: %s", one_line(str(error)))


def _removed(folder: Folder, name: str) -> None:
    try:
        folder.remove_tree(name)
    except OSError as error:
        logger.warning("an old checkpoint could not be removed: %s", one_line(str(error)))


def index_of(path: Path) -> dict[str, Any]:
    """The index of a checkpoint.

    Raises:
        CheckpointError: it cannot be read, is damaged, or is of another format.
    """
    try:
        with regular(path / INDEX) as file:
            return checked(load_json(file.read(MOST_BYTES + 1), MOST_BYTES, spread=4))
    except CheckpointError as error:
        raise CheckpointError(f"{path / INDEX} cannot be used: {error}") from error
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        described = one_line(str(error)) or type(error).__name__
        raise CheckpointError(f"{path / INDEX} cannot be read: {described}", hint=OTHER) from error


def clean(root: Path, keep: int) -> None:
    """Remove all whole checkpoints but the last ones, and what was begun before them and never finished.

    What cannot be removed is logged, and tried again by the next one.
    """
    found = listed(root)
    kept = [one for one in found if one.whole][-keep:]
    for one in found:
        if one in kept or not kept or one.number >= kept[-1].number:
            continue
        _discarded(one.path)
