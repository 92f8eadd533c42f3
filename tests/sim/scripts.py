"""Runs a program on simulated ranks, through the command."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from aiodist.cli.main import main

HEAD = """
import asyncio, time
import numpy as np
import aiodist as dist
from aiodist.sim import compute

async def body(pg):
"""
TAIL = """

async def main():
    async with await dist.init_process_group() as pg:
        await body(pg)

dist.run(main())
"""


class Simulate:
    """Simulates what a body of code, which has `pg`, does on each rank."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, body: str) -> str:
        """The script of a body."""
        path = self.folder / "script.py"
        path.write_text(HEAD + textwrap.indent(textwrap.dedent(body), "    ") + TAIL)
        return str(path)

    def facts(self, body: str, *options: str) -> dict[str, Any]:
        """What is found, as `--json` says it; all ranks print nothing."""
        assert main(["sim", self.write(body), *options, "--json"]) == 0
        found: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return found

    def printed(self, body: str, *options: str) -> list[str]:
        """The lines that the ranks print, until the table."""
        assert main(["sim", self.write(body), *options, "--print-ranks", "0-9999"]) == 0
        out = self._capsys.readouterr().out
        return out[: out.rindex(" ranks on ")].splitlines()[:-1]

    def error(self, body: str, *options: str, code: int = 1) -> str:
        """What standard error says of a simulation that fails."""
        assert main(["sim", self.write(body), *options]) == code
        return self._capsys.readouterr().err
