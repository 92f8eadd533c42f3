"""Thresholds come from one table, can be set by variables, and are agreed on."""

from __future__ import annotations

from dataclasses import fields

import pytest

from aiodist.environment.thresholds import DEFAULTS, Thresholds, thresholds
from aiodist.errors import UsageError


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


@pytest.mark.parametrize("text", ["-1", "1.5", "1 MiB", "0x10"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="AIODIST_INLINE="):
        thresholds({"AIODIST_INLINE": text})


@pytest.mark.parametrize(("name", "text"), [("AIODIST_DEPTH", "1"), ("AIODIST_BLOCK", "100")])
def test_what_is_too_small_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        thresholds({name: text})
