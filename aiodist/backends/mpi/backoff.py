"""The length of the pause between two looks at open requests. Pure: the time is an argument.

Most operations end soon after they began, so at first there is no pause. A process that waits long waits
for another that is late, and should leave it the core.
"""

from __future__ import annotations

SPIN = 50e-6  # seconds without any pause
OFFER = 200e-6  # … and then with the core offered to others between the looks
SHARE = 1 / 8  # of the time waited so far that a sleep takes: what ends meanwhile is late by no more
SHORTEST = 50e-6  # of the sleeps
LONGEST = 1e-3

NONE = 0.0
YIELD = -1.0  # offer the core


class PollPauses:
    """The pauses since something was last seen to move."""

    def __init__(self) -> None:
        self._since: float | None = None

    def moved(self) -> None:
        """Note that something moved: look again at once."""
        self._since = None

    def pause(self, now: float) -> float:
        """The pause when nothing moved.

        Args:
            now: seconds of any clock that only goes forward.

        Returns:
            seconds to sleep, NONE or YIELD.
        """
        if self._since is None:
            self._since = now
        idle = now - self._since
        if idle < SPIN:
            return NONE
        if idle < SPIN + OFFER:
            return YIELD
        return min(max(idle * SHARE, SHORTEST), LONGEST)
