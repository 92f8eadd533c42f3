"""How long to pause between two looks at open requests. Pure: the time is an argument.

Most operations end soon after they began, so at first there is no pause. Whoever waits long is
waiting for a process that is late, and should leave it the core.
"""

from __future__ import annotations

SPIN = 50e-6  # seconds without any pause
OFFER = 200e-6  # … and then with the core offered to others between the looks
SHORTEST = 50e-6  # of the sleeps that follow, each twice as long as the one before
LONGEST = 1e-3

NONE = 0.0
YIELD = -1.0  # offer the core


class Backoff:
    """The pauses since something was last seen to move."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._sleep = SHORTEST

    def moved(self) -> None:
        """Something did: look again at once."""
        self._since = None
        self._sleep = SHORTEST

    def pause(self, now: float) -> float:
        """Nothing moved.

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
        sleep = self._sleep
        self._sleep = min(2 * sleep, LONGEST)
        return sleep
