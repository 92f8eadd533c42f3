"""When nothing of this process touches a group's buffers any more: the end of a broken group waits for it."""

from __future__ import annotations

from collections.abc import Callable


class Release:
    """Counts what still touches the buffers of one group: jobs in threads, copies, libraries. On the loop.

    Whoever hands a buffer to one of these holds the release, and lets go when it is done with, whatever came
    of it. The group fails its Works, and so gives the buffers back to the user, when all have let go.
    """

    __slots__ = ("_holders", "_then")

    def __init__(self) -> None:
        self._holders = 0
        self._then: Callable[[], None] | None = None

    def hold(self) -> None:
        """A buffer of the group is touched from now on."""
        self._holders += 1

    def let_go(self) -> None:
        """It is not any more. Once for each `hold`."""
        self._holders -= 1
        self._look()

    def when_free(self, then: Callable[[], None]) -> None:
        """Call something once, now or when the last one lets go."""
        self._then = then
        self._look()

    def _look(self) -> None:
        then = self._then
        if then is not None and not self._holders:
            self._then = None
            then()


def once(function: Callable[[], None]) -> Callable[[], None]:
    """The first call of a function; further ones do nothing."""
    waiting = [function]

    def call() -> None:
        if waiting:
            waiting.pop()()

    return call
