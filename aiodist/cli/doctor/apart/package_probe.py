"""One Python package. NumPy, too, can crash: on a processor that is too old for it."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version


def probe(name: str) -> dict[str, str]:
    """Import the package → 'version', '' where it says none. Raises whatever a broken one raises."""
    found = getattr(import_module(name), "__version__", "")
    if isinstance(found, str) and found:
        return {"version": found}
    try:
        return {"version": version(name)}
    except PackageNotFoundError:
        return {"version": ""}
