"""The recorder of terminals: what was written becomes pictures, and an SVG that any XML parser takes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

SOURCE = Path(__file__).parents[1] / "docs" / "make_terminal.py"
spec = importlib.util.spec_from_file_location("make_terminal", SOURCE)
assert spec is not None and spec.loader is not None
made = importlib.util.module_from_spec(spec)
sys.modules["make_terminal"] = made  # its dataclasses look there
spec.loader.exec_module(made)
SVG = "{http://www.w3.org/2000/svg}"


def test_lines_are_drawn_over_and_long_waits_are_short() -> None:
    written = [(5.0, "a 1"), (5.5, "\r\x1b[Ka 2"), (9.0, "\r\nb\r\n")]
    found = made.frames(written)
    assert [frame.lines for frame in found] == [("",), ("a 1",), ("a 2",), ("a 2", "b", "")]
    assert [frame.at for frame in found] == pytest.approx([0.0, 1.0, 1.5, 2.5])


def test_the_last_picture_is_seen_without_animation() -> None:
    found = made.frames([(0.5, "\x1b[36mvm:0│\x1b[0m x <&>"), (1.0, "\r\nend")])
    root = ElementTree.fromstring(made.draw("run & see", found))
    title = root.find(f"{SVG}title")
    assert title is not None and title.text == "run & see"
    groups = [group for group in root.iter(f"{SVG}g") if group.get("visibility")]
    assert [group.get("visibility") for group in groups] == ["hidden", "hidden", "visible"]
    last = "".join(groups[-1].itertext()).replace("\u00a0", " ")
    assert last == "vm:0│ x <&>end"
    assert "#56d4dd" in {span.get("fill") for span in groups[-1].iter(f"{SVG}tspan")}


def test_a_real_command(tmp_path: Path) -> None:
    written = made.record([sys.executable, "-c", "print('é and more')"])
    assert made.frames(written)[-1].lines == ("é and more", "")
    with pytest.raises(SystemExit, match="it ended with 3"):
        made.record([sys.executable, "-c", "raise SystemExit(3)"])
