"""The pages of docs/ run: each block of Python, on every rank of a cluster of two, in a group of its own."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from aiodist.testing.spmd import check, launch
from tests.ports import free_port

DOCS = Path(__file__).parents[1] / "docs"
SCRIPTS = (" before", " after")
FENCE = re.compile(r"^```python( [a-z]+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[Any]:
    """The blocks of a page, named after their lines; whole scripts are run elsewhere."""
    text = (DOCS / page).read_text()
    found = []
    for match in FENCE.finditer(text):
        if match[1] not in SCRIPTS:
            line = text[: match.start(2)].count("\n")
            found.append(pytest.param(page, line, match[2], id=f"{page}:{line}"))
    return found


def scripts(page: str) -> dict[str, str]:
    """The blocks that are whole scripts, by their mark."""
    text = (DOCS / page).read_text()
    return {match[1].strip(): match[2] for match in FENCE.finditer(text) if match[1] in SCRIPTS}


@pytest.mark.parametrize(("page", "line", "code"), [*blocks("work.md"), *blocks("porting-from-torch.md")])
async def test_block(page: str, line: int, code: str) -> None:
    compiled = compile("\n" * line + code, str(DOCS / page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def main(pg: ProcessGroup) -> None:
        names = {"pg": pg, "dist": dist, "np": np, "asyncio": asyncio}
        if "torch" in code:
            names["torch"] = pytest.importorskip("torch")
        made = eval(compiled, names)
        if inspect.iscoroutine(made):
            await made

    await run_cluster(2, main)


def run_script(path: Path, port: int) -> list[str]:
    """What two processes of a script print, in rank order."""
    outcomes = asyncio.run(launch([str(path)], 2, timeout=120, env={"MASTER_PORT": str(port)}))
    check(outcomes, {})
    return [outcome.output.strip() for outcome in outcomes]


@pytest.mark.slow("two processes with torch")
@pytest.mark.parametrize("kind", ["after", "before"])
def test_the_example_before_and_after_print_the_same(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the example uses torch tensors")
    code = scripts("porting-from-torch.md")[kind]
    path = tmp_path / f"{kind}.py"
    path.write_text(code)
    first, second = run_script(path, free_port())  # torch's rank 0 listens on MASTER_PORT itself
    shown = re.search(
        r"It prints\n\n```text\n(.*?)\n```", (DOCS / "porting-from-torch.md").read_text(), re.DOTALL
    )
    assert shown is not None
    assert [first, second] == shown[1].splitlines()


def test_files_that_contributing_names_exist() -> None:
    root = DOCS.parent
    text = (root / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:aiodist|tests|docs|benchmarks)/[\w/.]*(?:\.py|\.md|/)", text))
    assert len(named) > 30
    missing = {name for name in named if "NAME" not in name and not (root / name).exists()}
    assert not missing


def test_scripts_differ_in_few_lines() -> None:
    both = scripts("porting-from-torch.md")
    assert set(both) == {"before", "after"}
    before, after = both["before"].splitlines(), both["after"].splitlines()
    assert len(before) == len(after)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    for old, new in changed:
        words = (
            new.replace("await ", "")
            .replace("async ", "")
            .replace("aiodist as dist", "torch.distributed as dist")
        )
        assert words.replace("dist.run(main())", "main()") in (old, old.replace(".wait()", "")), new
