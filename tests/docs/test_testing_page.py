"""The tests that the page on testing shows (testing.md) pass."""

from __future__ import annotations

import asyncio

import numpy as np

from tests.docs.pages import ALL


def test_the_tests_of_the_page() -> None:
    blocks = [block for block in ALL if block.page == "testing.md" and block.language == "python"]
    assert blocks
    for block in blocks:
        names = {"np": np, "asyncio": asyncio}
        exec(compile("\n" * block.line + block.code, "testing.md", "exec"), names)
        tests = [value for name, value in names.items() if name.startswith("test_")]
        assert tests
        for test in tests:
            test()  # type: ignore[operator]
