"""The compiled base of a Work, and what an await makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from aiodist import _engine

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")


def test_an_iterator_of_no_await_says_so() -> None:
    engine: Any = _engine.compiled
    kind = type(engine.Handle(None, None, True).__await__())
    for use in (
        next,
        lambda made: made.send(None),
        lambda made: made.throw(KeyError),
        lambda made: made.close(),
    ):
        with pytest.raises(TypeError, match="only `await`"):
            use(kind())
