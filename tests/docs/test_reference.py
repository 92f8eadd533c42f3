"""docs/reference.md is what the docstrings say, and has every public name."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import aiodist

pytest.importorskip("torch")  # DistributedDataParallel is in it

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """docs/make_reference.py, which is a script."""
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_as_generated(maker: ModuleType) -> None:
    assert maker.PAGE.read_text() == maker.page(), "run python docs/make_reference.py"


def test_every_public_name_is_in_it(maker: ModuleType) -> None:
    listed = [name for names in maker.SECTIONS.values() for name in names]
    assert len(set(listed)) == len(listed)
    public = {*aiodist.__all__, "DistributedDataParallel"}  # which `import *` leaves out: it imports torch
    assert {name for name in listed if "." not in name} == public


def test_every_method_of_a_group_is_in_it(maker: ModuleType) -> None:
    found = {name for name, _ in inspect.getmembers(aiodist.ProcessGroup, inspect.isfunction)}
    assert set(maker.CLASSES["ProcessGroup"]) == {name for name in found if not name.startswith("_")}


def test_every_entry_says_something(maker: ModuleType) -> None:
    entries = re.split(r"^#{3,4} ", maker.PAGE.read_text(), flags=re.MULTILINE)[1:]
    for entry in entries:
        name, _, rest = entry.partition("\n")
        assert re.sub(r"```python.*?```", "", rest, flags=re.DOTALL).strip(), f"{name} has no docstring"


def test_sections_of_a_docstring_become_lists_and_code(maker: ModuleType) -> None:
    doc = """Does it.

    draw the tree

Args:
    first: what comes
        first, on two lines.
    second, third: the others.

Returns:
    → the sum.

Raises:
    asyncio.InvalidStateError: too early."""
    assert [part.rstrip() for part in maker.prose(doc)] == [
        "Does it.",
        "```\ndraw the tree\n```",
        "**Args:**",
        "- `first`: what comes first, on two lines.\n- `second, third`: the others.",
        "**Returns:**",
        "→ the sum.",
        "**Raises:**",
        "- `asyncio.InvalidStateError`: too early.",
    ]
