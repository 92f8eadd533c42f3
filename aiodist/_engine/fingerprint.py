"""The fingerprint of the engine's sources, and the compiler's flags: an extension made by them has it, too.

The build hook imports this file alone, so it imports nothing of aiodist.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

FLAGS = (
    *("-O3", "-g0", "-fno-fast-math", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"),
    "-fno-strict-aliasing",
)
"""How the compiler is called. -fno-fast-math undoes what the environment may ask for (CFLAGS)."""


def fingerprint(folder: Path) -> str:
    """16 hex digits that stand for the flags and all sources in a folder; '' where there are none."""
    digest = hashlib.blake2b(" ".join(FLAGS).encode(), digest_size=8)
    try:
        sources = sorted(path for path in folder.iterdir() if path.suffix in (".pyx", ".pxd", ".h"))
    except OSError:  # the package is no folder: an archive
        return ""
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest() if sources else ""
