"""A job that runs, for a page of its own: the same as commands look at."""

from __future__ import annotations

from tests.cli.conftest import job as job_here

__all__ = ["job_here"]
