"""The version of aiodist that is installed here."""

from __future__ import annotations


def installed_version() -> str:
    """The version; '' where it is not installed, but found by its path."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("aiodist")
    except PackageNotFoundError:
        return ""
