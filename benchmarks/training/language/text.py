"""The text: the source of the installed aiodist, as characters. Deterministic for one commit."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import aiodist

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""Characters that there are; others become '?'."""

HELD_OUT = 10
"""One file in so many is never trained on."""

Codes = npt.NDArray[np.uint8]
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Text:
    """Characters as their numbers in the alphabet.

    Attributes:
        train, held_out: of the files in the order of their names; no file has a part in both.
        digest: of both.
    """

    train: Codes
    held_out: Codes
    digest: str


def corpus(root: Path | None = None) -> Text:
    """The text of all Python files under a folder.

    Args:
        root: None: the package.
    """
    root = Path(aiodist.__file__).parent if root is None else root
    parts: tuple[list[str], list[str]] = ([], [])
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        name = path.relative_to(root).as_posix()
        parts[zlib.crc32(name.encode()) % HELD_OUT == 0].append(path.read_text())
    train, held_out = (encode("".join(part)) for part in parts)
    digest = hashlib.blake2b(train.tobytes() + b"|" + held_out.tobytes(), digest_size=8).hexdigest()
    return Text(train, held_out, digest)


def encode(text: str) -> Codes:
    """Characters → their numbers."""
    table = np.full(128, ALPHABET.index("?"), np.uint8)
    table[[ord(one) for one in ALPHABET]] = np.arange(len(ALPHABET))
    points = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    found: Codes = table[points]
    return found


def windows(codes: Codes, starts: npt.NDArray[Any], length: int) -> tuple[Tokens, Tokens]:
    """Pieces of a text, and what follows each of their characters: two arrays, [starts, length]."""
    at = np.asarray(starts)[:, None] + np.arange(length + 1)
    taken = codes[at].astype(np.int64)
    return taken[:, :-1], taken[:, 1:]


def batch(codes: Codes, rank: int, step: int, count: int, length: int) -> tuple[Tokens, Tokens]:
    """A rank's batch of a step: `windows` at places that depend on nothing else."""
    random = np.random.default_rng([rank, step])
    return windows(codes, random.integers(0, codes.size - length, count), length)


def samples(codes: Codes, count: int, length: int) -> tuple[Tokens, Tokens]:
    """So many pieces, evenly spread over a text: what losses are measured on."""
    starts = np.linspace(0, codes.size - length - 1, count).astype(np.int64)
    return windows(codes, starts, length)
