"""The directive `{commands}`: what each `aiodist COMMAND --help` prints, as sections of a page."""

from __future__ import annotations

import contextlib
import io
import os
from importlib import import_module
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from aiodist.cli.main import COMMANDS


def help_of(command: str) -> str:
    """The help of a command, as it is printed with no variables set, on a terminal of 90 columns."""
    shown = io.StringIO()
    environ = {"COLUMNS": "90", "NO_COLOR": "1", "PATH": os.environ["PATH"]}
    with (
        mock.patch.dict(os.environ, environ, clear=True),
        contextlib.redirect_stdout(shown),
        contextlib.suppress(SystemExit),
    ):
        import_module(f"aiodist.cli.{command}").main(["--help"])
    return shown.getvalue().rstrip()


class Commands(SphinxDirective):
    """A section for each command: one sentence, and its help."""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for command, text in COMMANDS.items():
            section = nodes.section(ids=[f"aiodist-{command}"])
            title = f"aiodist {command}"
            section += nodes.title(title, title)
            section += nodes.paragraph(text, f"{text[0].upper()}{text[1:]}.")
            shown = help_of(command)
            if not shown:
                raise self.error(f"aiodist {command} --help printed nothing")
            section += nodes.literal_block(shown, shown, language="text")
            found.append(section)
        return found


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx of the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
