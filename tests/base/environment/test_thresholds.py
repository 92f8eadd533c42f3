"""Thresholds come from one table, can be set by variables, and are agreed on."""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path

import pytest

from aiodist.base.environment.thresholds import DEFAULTS, Thresholds, thresholds
from aiodist.base.errors import UsageError


def test_defaults() -> None:
    assert thresholds({}) == DEFAULTS
    assert thresholds({"AIODIST_INLINE": ""}) == DEFAULTS


@pytest.mark.parametrize("field", [field.name for field in fields(Thresholds)])
def test_each_has_its_variable_and_all_but_polling_are_agreed(field: str) -> None:
    name = f"AIODIST_{field.upper()}"
    found = thresholds({name: "65536"})
    assert getattr(found, field) == 65536
    assert (name in found.agreed) == (field != "poll")
    if field != "poll":
        assert found.agreed[name] == "65536"


@pytest.mark.parametrize("field", fields(Thresholds), ids=lambda field: field.name)
def test_each_is_in_the_documentation_with_its_default(field: Field[int]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "environment.md").read_text()
    default = int(str(field.default))
    shown = str(default)
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if default >= unit and default % unit == 0:
            shown = f"{default // unit} {name}"
            break
    assert f"| `AIODIST_{field.name.upper()}` | {shown} |" in page


@pytest.mark.parametrize("text", ["-1", "1.5", "1 MiB", "0x10"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="AIODIST_INLINE="):
        thresholds({"AIODIST_INLINE": text})


@pytest.mark.parametrize(("name", "text"), [("AIODIST_DEPTH", "1"), ("AIODIST_BLOCK", "100")])
def test_what_is_too_small_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        thresholds({name: text})
