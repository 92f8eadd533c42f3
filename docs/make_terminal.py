"""Records a command in a terminal, and draws it as an SVG that plays once and ends with its last picture.

    python docs/make_terminal.py docs/figures/train.svg -- aiodist run --nproc-per-node 4 \\
        examples/train_digits.py

It runs in a terminal of its own, of 96 columns. What is understood of a terminal's orders is what the
launcher writes: lines, lines that are drawn over, colours. Where nothing happens for more than a second, one
second is shown. Who shows no animation, or wants none, sees the last picture.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLUMNS = 96
_ROWS = 30
_SPACE = "\u00a0"  # several others would be shown as one
_LONGEST = 1.0  # seconds in which nothing happens
_SIZE, _WIDTH, _LINE = 13, 7.83, 19  # of a character, and from line to line
_EDGE, _HEAD = 16, 30
_PLAIN = "#d6dbe4"
_COLOURS = {
    "31": "#ff7b72",
    "32": "#7ee787",
    "33": "#e3b341",
    "34": "#79c0ff",
    "35": "#d2a8ff",
    "36": "#56d4dd",
    "2": "#8b949e",
}
_ORDER = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


@dataclass(frozen=True)
class Frame:
    """What the terminal shows from a moment on.

    Attributes:
        at: seconds since the picture began.
        lines: as they were written, with colours.
    """

    at: float
    lines: tuple[str, ...]


def frames(written: Sequence[tuple[float, str]]) -> list[Frame]:
    """The pictures that follow from what was written, and when; those that differ."""
    lines, found = [""], [Frame(0.0, ("",))]
    over = False  # the next text is drawn over this line
    shown = before = 0.0
    for at, text in written:
        shown, before = shown + min(at - before, _LONGEST), at
        for piece in re.split(r"(\r\n|\n|\r|\x1b\[K)", text):
            if piece in ("\r\n", "\n"):
                lines.append("")
                over = False
            elif piece == "\r":
                over = True
            elif piece == "\x1b[K":
                lines[-1], over = "", False
            elif piece:
                lines[-1], over = piece if over else lines[-1] + piece, False
        if found[-1].lines != tuple(lines):
            found.append(Frame(shown, tuple(lines)))
    return found


def record(command: Sequence[str]) -> list[tuple[float, str]]:
    """Run a command in a terminal → what it wrote, and when.

    Raises:
        SystemExit: it failed.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, COLUMNS, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        ["setsid", "--ctty", *command], stdin=slave, stdout=slave, stderr=slave, env=environ
    )
    os.close(slave)
    written = []
    with open(master, "rb", buffering=0) as terminal:
        pending = b""
        while True:
            try:
                pending += terminal.read(65536)
            except OSError:  # nobody has it open any more
                break
            try:
                text, pending = pending.decode(), b""
            except UnicodeDecodeError:  # half a character
                continue
            written.append((time.monotonic() - began, text))
    if code := process.wait():
        raise SystemExit(f"it ended with {code}: {''.join(text for _, text in written)[-2000:]}")
    return written


def draw(title: str, found: Sequence[Frame]) -> str:
    """The SVG of some frames; under the command that is shown above them."""
    last = found[-1]
    rows = 1 + max(len(frame.lines) for frame in found) - (not last.lines[-1])
    width, height = 2 * _EDGE + COLUMNS * _WIDTH, _HEAD + rows * _LINE + _EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        'role="img">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" rx="8" fill="#0d1117" stroke="#8b949e" stroke-opacity=".4"/>',
        *(f'<circle cx="{18 + 16 * n}" cy="15" r="5" fill="#8b949e" opacity=".6"/>' for n in range(3)),
        f'<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" '
        f'font-size="{_SIZE}" fill="{_PLAIN}">',
        _text(0, f"\x1b[32m$\x1b[0m {title}"),
    ]
    for number, frame in enumerate(found):
        if frame is last:
            when = f'<set attributeName="visibility" to="hidden" begin="0s" end="{last.at:.2f}s"/>'
            seen = "visible"
        else:
            until = found[number + 1].at
            when = (
                f'<set attributeName="visibility" to="visible" begin="{frame.at:.2f}s" end="{until:.2f}s"/>'
            )
            seen = "hidden"
        lines = [_text(row, line) for row, line in enumerate(frame.lines, 1) if line]
        parts.append(f'<g visibility="{seen}">{when}{"".join(lines)}</g>')
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _text(row: int, line: str) -> str:
    """One line. Each run of one colour has its place, so that a font of another width does no harm."""
    spans, column, style = [], 0, ""
    cut = 0
    for match in [*_ORDER.finditer(line), None]:
        text = line[cut : match.start() if match else len(line)]
        if text.strip():
            x = _EDGE + column * _WIDTH
            spans.append(
                f'<tspan x="{x:.1f}" textLength="{len(text) * _WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
                f"{style}>{escape(text).replace(' ', _SPACE)}</tspan>"
            )
        column += len(text)
        if match is None:
            break
        cut = match.end()
        if match[2] == "m":
            style = _style(match[1])
    return f'<text y="{_HEAD + row * _LINE + _SIZE}">{"".join(spans)}</text>'


def _style(codes: str) -> str:
    given = codes.split(";")
    bold = ' font-weight="bold"' if "1" in given else ""
    colour = next((_COLOURS[code] for code in given if code in _COLOURS), "")
    return bold + (f' fill="{colour}"' if colour else "")


def main() -> None:
    """Read the command line, record, and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    options.picture.write_text(draw(shlex.join(options.command), frames(record(options.command))))


if __name__ == "__main__":
    sys.exit(main())
