"""What a worker does that others wait for: its line, its stack and its tasks, as lines for the report."""

from __future__ import annotations

PATIENCE = 1.2
"""Seconds to wait for the answer: less than the grace of such a failure (`supervisor.SYMPTOM_GRACE`)."""

MOST = 24
"""Lines."""


def doing(pid: int) -> tuple[str, ...]:
    """Ask a process of this host what it does → lines; () where it does not say. It waits: for a thread.

    Args:
        pid: its number.
    """
    # Only here, where something has failed: a launcher that starts needs none of it.
    from aiodist.observe.ask import ask
    from aiodist.observe.host import read_ranks
    from aiodist.observe.rank_lines import rank_lines

    views = [view for view in ask(read_ranks(pid=pid), PATIENCE) if view.stacks is not None]
    lines = [line for view in views[:1] for line in rank_lines(view)][1:]  # the report names it
    return (*lines[:MOST], *([f"… {len(lines) - MOST} lines more"] if len(lines) > MOST else ()))
