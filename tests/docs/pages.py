"""The code blocks of the pages: what each one is, and how it is run.

What follows the language on a fence's line is the block's mark:

| Mark | |
|---|---|
| Python, none | run on each rank of a cluster of two |
| `warns` | the same; it warns of a forgotten await |
| `file=NAME` | written into a folder, where the shell blocks of its page find it |
| shell, `run` | run in that folder; with `fails`, it has to end with another code than 0 |
| `torch`, `jax` after `run` | the same, where that package is installed |
| `elsewhere` | run by the test in `ELSEWHERE` |
| `not run: REASON` | only its syntax is looked at, and the options of the commands in it |
| `before`, `after`, `batchnorm` | parts of a test of their own |

A comment `<!-- set-up … -->` before a Python block runs before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
NAMED = ("before", "after", "batchnorm")
ELSEWHERE = {
    "etcd.md": "tests/rendezvous/etcd/test_faults.py",
    "porting-from-torch.md": "tests/docs/test_blocks.py",
    "security.md": "tests/conftest.py",
    "store.md": "tests/rendezvous/test_store_page.py",
    "testing.md": "tests/docs/test_testing_page.py",
    "torch.md": "tests/integration/test_torch_backend.py",
    "write-a-backend.md": "tests/integration/test_third_party.py",
}
_FENCE = re.compile(
    r"(?:^<!-- set-up\n(?P<setup>.*?)^-->\n\n)?"
    r"^```(?P<language>\w+)(?: (?P<mark>[^\n]*))?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        page: name of its file.
        line: of its fence, from 1.
        language: 'python', 'sh', 'text'…
        mark: what stands behind the language.
        code: its text, and before it the hidden set-up, where there is one.
    """

    page: str
    line: int
    language: str
    mark: str
    code: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order; those of a notebook's cells are none."""
    text = (DOCS / page).read_text()
    found = []
    for match in _FENCE.finditer(text):
        line = text[: match.start("language")].count("\n") + 1
        code = (match["setup"] or "") + match["code"]
        found.append(Block(page, line, match["language"], match["mark"] or "", code))
    return found


ALL = [block for page in PAGES for block in blocks(page)]
