"""Warnings of ranks: filtered as the test's process filters them, and told there, each once."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from aiodist.base.callers import short_path
from aiodist.base.errors import name_ranks
from aiodist.testing.outcome import RanksFailed
from aiodist.testing.parcel import pack, unpack
from aiodist.testing.report import line_of


def filters() -> tuple[bytes, ...]:
    """The filters of this process that can go to the ranks."""
    found: Any = getattr(warnings, "_get_filters", lambda: warnings.filters)()
    return tuple(packed for one in found if (packed := _packed(one)) is not None)


def _packed(value: object) -> bytes | None:
    try:
        return pack(value)
    except Exception:  # a category that is no module's
        return None


def _unpacked(data: bytes) -> Any:
    try:
        return unpack(data)
    except Exception:  # of a module that is not found here
        return None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning: its text, and its place. The message is a pickle; None where there is none."""

    text: str
    kind: type[Warning]
    file: str
    line: int
    message: bytes | None = None


class Warnings:
    """The warnings of this rank.

    Args:
        folder: of the test.
        rank: this one.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"warnings{rank}"
        self._found: list[Warned] = []

    def begin(self, filters: Sequence[bytes], file: str, line: int) -> None:
        """Filter and keep them from here on.

        Args:
            filters: those of the test's process.
            file: the function's; line: its first.
        """
        known = [one for packed in filters if (one := _unpacked(packed)) is not None]
        warnings.resetwarnings()
        cast("Any", warnings).filters[:] = known
        warnings.showwarning = self._warned
        pytest: Any = sys.modules.get("pytest")
        if pytest is None:
            return
        kind = pytest.PytestUnraisableExceptionWarning

        def unraisable(args: Any, /) -> None:
            if isinstance(args.exc_value, Warning):  # filters make it an error, which nobody can catch
                self._found.append(Warned(str(args.exc_value), type(args.exc_value), file, line))
                return
            what = f"{args.err_msg or 'Exception ignored in'}: {args.object!r}"
            trace = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
            text = f"{what}\n\n{''.join(trace)}"
            self._found.append(Warned(text, kind, file, line))

        sys.unraisablehook = unraisable

    def _warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        self._found.append(Warned(str(message), category, filename, lineno, _packed(message)))

    def end(self) -> None:
        """Write down what there was."""
        if self._found:
            packed = [one for one in map(_packed, self._found) if one is not None]
            self._path.write_bytes(pack(packed))


def reported(folder: Path, size: int) -> RanksFailed | None:
    """Warn of what the ranks have warned of → the error where one is an error here, as of a finalizer's."""
    ranks: dict[Warned, list[int]] = {}
    for rank in range(size):
        path = folder / f"warnings{rank}"
        for one in map(_unpacked, unpack(path.read_bytes()) if path.exists() else ()):
            if one is not None and rank not in ranks.setdefault(one, []):
                ranks[one].append(rank)
    failed: RanksFailed | None = None
    for one, theirs in ranks.items():
        message = None if one.message is None else _unpacked(one.message)
        try:
            warnings.warn_explicit(one.text if message is None else message, one.kind, one.file, one.line)
        except Warning as error:
            who = f"{name_ranks(theirs)} of {size}"
            failed = failed or RanksFailed(f"{who}: {line_of(error)}", _detail(one))
    return failed


def _detail(one: Warned) -> str:
    return one.text if "\n" in one.text else f"{short_path(one.file)}:{one.line}"
