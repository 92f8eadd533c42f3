"""Errors of other people's libraries, in one line."""

from __future__ import annotations

from aiodist.cli.doctor.topic import describe, one_line


def test_errors_in_one_line() -> None:
    wrapped = ImportError("=" * 60 + "\nFailed to import.\n" + "=" * 60)
    wrapped.__cause__ = OSError("libcuda.so.1: cannot open\nshared object")
    assert describe(wrapped) == "OSError: libcuda.so.1: cannot open shared object"
    assert describe(KeyError()) == "KeyError"
    assert one_line("====\na  b\n----") == "a b"
    assert len(one_line("x" * 1000)) == 160
