"""Views as plain values."""

from __future__ import annotations

import json

import pytest

from aiodist.errors import WireError
from aiodist.observe import RankView, Stacks
from tests.observe.made import a_rank


@pytest.mark.parametrize("stacks", [None, Stacks(("a",), ("b", "c"), True, ("d",))])
def test_a_view_comes_back_from_json(stacks: Stacks | None) -> None:
    view = a_rank(1, stacks=stacks)
    again = RankView.from_json(json.loads(json.dumps(view.to_json())))
    assert again.stacks == stacks
    assert again.to_json() == view.to_json()


def test_stacks_that_are_none() -> None:
    with pytest.raises(WireError, match="this is no rank"):
        RankView.from_json({**a_rank().to_json(), "stacks": {"thread": []}})
