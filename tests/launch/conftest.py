"""The fixture that starts real jobs; see `jobs`."""

from __future__ import annotations

from tests.launch.jobs import Job, Start, start

__all__ = ["Job", "Start", "start"]
