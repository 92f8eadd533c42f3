"""The pages of docs/ run: each block of Python or of a shell, as its mark says (tests/docs/pages.py)."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import inspect
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import aiodist as dist
from aiodist.cli.main import COMMANDS
from aiodist.cli.parser import Parser
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from aiodist.testing.outcome import check
from aiodist.testing.ranks import launch
from tests.docs.pages import ALL, DOCS, ELSEWHERE, NAMED, PAGES, ROOT, Block
from tests.ports import free_port


def named(found: list[Block]) -> list[Any]:
    """Parameters of a test, named after their lines."""
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in found]


def shells(*marks: str) -> list[Block]:
    """The shell blocks with one of these marks."""
    return [block for block in ALL if block.language == "sh" and block.mark in marks]


IN_A_CLUSTER = [block for block in ALL if block.language == "python" and block.mark in ("", "warns")]
SHELL = shells("run", "run fails", "run torch", "run jax")
QUICK = next(block for block in SHELL if block.page == "quickstart.md")
LEFT_OUT = [block for block in ALL if block.mark.startswith("not run: ")]


@pytest.mark.parametrize("block", named([block for block in ALL if block.language in ("python", "sh")]))
def test_each_block_says_how_it_is_run(block: Block) -> None:
    known = block in IN_A_CLUSTER or block in SHELL or block in LEFT_OUT
    known |= block.language == "python" and re.fullmatch(r"file=\w+\.py", block.mark) is not None
    if block.mark == "elsewhere" or block.mark in NAMED:
        known = block.page in (ROOT / ELSEWHERE[block.page]).read_text()
    assert known, f"a block of {block.language} with the mark {block.mark!r}: see tests/docs/pages.py"


@pytest.mark.parametrize("block", named(IN_A_CLUSTER))
async def test_block(block: Block) -> None:
    path = str(DOCS / block.page)
    lines = "\n" * block.line
    compiled = compile(lines + block.code, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def main(pg: ProcessGroup) -> None:
        names = {"pg": pg, "dist": dist, "np": np, "asyncio": asyncio}
        if "torch" in block.code:
            names["torch"] = pytest.importorskip("torch")
        made = eval(compiled, names)
        if inspect.iscoroutine(made):
            await made

    warns = block.mark == "warns"
    expected = pytest.warns(RuntimeWarning, match="was never awaited") if warns else contextlib.nullcontext()
    with expected:
        await run_cluster(2, main)
        gc.collect()


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block,
            id=f"{block.page}:{block.line}",
            marks=() if block is QUICK else pytest.mark.slow("more of the same, in processes"),
        )
        for block in SHELL
    ],
)
def test_commands_run(block: Block, tmp_path: Path) -> None:
    for package in {"torch", "jax"} & set(block.mark.split()):
        pytest.importorskip(package)
    for each in ALL:
        if each.page == block.page and each.mark.startswith("file="):
            (tmp_path / each.mark.removeprefix("file=")).write_text(each.code)
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        ["bash", "-e", "-c", block.code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250
    )
    assert (ran.returncode != 0) == ("fails" in block.mark), ran.stdout + ran.stderr
    assert ran.stdout or ran.stderr
    if block is QUICK:
        assert ran.stdout.count("has [10. 10. 10.]") == 4


class _Parsed(Exception):
    """A command line has been understood; nothing is done."""


@pytest.mark.parametrize("block", named(LEFT_OUT))
def test_blocks_that_are_not_run_are_well_formed(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(block.mark) > len("not run: it needs")
    if block.language == "python":
        compile(block.code, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return
    assert block.language == "sh"
    read = Parser.parse_args

    def parse(parser: Parser, *args: Any) -> NoReturn:
        read(parser, *args)
        raise _Parsed

    monkeypatch.setattr(Parser, "parse_args", parse)
    subprocess.run(["bash", "-n", "-c", block.code], check=True)
    for line in block.code.replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line, comments=True) or [""]
        if program == "aiodist":
            words = [word for word in words if not word.startswith("[")]
            assert words[0] in COMMANDS
            with pytest.raises(_Parsed):
                import_module(f"aiodist.cli.commands.{words[0]}").main(words[1:])


def scripts(page: str) -> dict[str, str]:
    """The blocks that are whole scripts, by their mark."""
    return {
        block.mark: block.code for block in ALL if block.page == page and block.mark in ("before", "after")
    }


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
        r"Both print\n\n```text\n(.*?)\n```", (DOCS / "porting-from-torch.md").read_text(), re.DOTALL
    )
    assert shown is not None
    assert [first, second] == shown[1].splitlines()


def test_pages_are_in_the_contents() -> None:
    listed = set(re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    assert {page.removesuffix(".md") for page in PAGES} - {"index"} <= listed


def test_files_that_contributing_names_exist() -> None:
    root = DOCS.parent
    text = (root / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:aiodist|tests|docs|benchmarks)/[\w/.]*(?:\.py|\.md|/)(?![\w/])", text))
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
