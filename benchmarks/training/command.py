"""`python -m benchmarks training WHAT …`; each has its own options, see `WHAT --help`.

language    a small language model over slow cables, by each algorithm
digits      handwritten digits, by ranks that are killed at random moments, and without deaths
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.command import dispatch

PARTS = {
    "language": "benchmarks.training.language.command",
    "digits": "benchmarks.training.digits.command",
}


def main(argv: Sequence[str]) -> int:
    """Train by one of them."""
    return dispatch(PARTS, __doc__, argv)
