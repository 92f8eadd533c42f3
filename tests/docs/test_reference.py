"""The reference has every public name, each once."""

from __future__ import annotations

import inspect
import re

import aiodist
import aiodist.testing
from tests.docs.pages import DOCS

REFERENCE = DOCS / "reference"
ENTRY = re.compile(r"^\.\. auto(\w+):: aiodist\.([\w.]+)((?:\n   :.*)*)", re.MULTILINE)


def entries() -> list[str]:
    """The names that have an entry, and Class.method for those listed as members."""
    found = []
    for page in REFERENCE.glob("*.md"):
        for _, name, options in ENTRY.findall(page.read_text()):
            found.append(name)
            members = re.search(r":members: (.+)", options)
            found += [f"{name}.{member}" for member in members[1].split(", ")] if members else []
    return found


def test_every_public_name_is_in_it_once() -> None:
    listed = entries()
    assert len(set(listed)) == len(listed)
    public = {*aiodist.__all__, "DistributedDataParallel"}  # which `import *` leaves out: it imports torch
    assert {name for name in listed if "." not in name} == public
    testing = {name.removeprefix("testing.") for name in listed if name.startswith("testing.")}
    assert {name for name in testing if "." not in name} == set(aiodist.testing.__all__)


def test_every_method_of_a_group_is_in_it() -> None:
    found = {name for name, _ in inspect.getmembers(aiodist.ProcessGroup, inspect.isfunction)}
    listed = {name.partition(".")[2] for name in entries() if name.startswith("ProcessGroup.")}
    assert listed == {name for name in found if not name.startswith("_")}


def test_every_page_is_in_the_contents() -> None:
    listed = (REFERENCE / "index.md").read_text().splitlines()
    assert {page.stem for page in REFERENCE.glob("*.md")} - {"index"} <= set(listed)
