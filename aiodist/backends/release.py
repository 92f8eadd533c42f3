"""The release of a group's buffers: a broken group ends when nothing of this process touches them."""

from __future__ import annotations

from collections.abc import Callable


class BuffersInUse:
    """The count of what touches the buffers of one group: jobs in threads, copies, libraries. On the loop.

    Code that hands a buffer to one of these holds the release, and lets go at its end, however it ends. The
    group fails its Works, and so gives the buffers back to the user, when all have let go.
    """

    __slots__ = ("_holders", "_then")

    def __init__(self) -> None:
        self._holders = 0
        self._then: Callable[[], None] | None = None

    def hold(self) -> None:
        """Note that a buffer of the group is touched from now on."""
        self._holders += 1

    def let_go(self) -> None:
        """Note that it is not touched any more. Once for each `hold`."""
        self._holders -= 1
        self._release()

    def when_free(self, then: Callable[[], None]) -> None:
        """Call something once, now or when the last one lets go."""
        self._then = then
        self._release()

    def _release(self) -> None:
        then = self._then
        if then is not None and not self._holders:
            self._then = None
            then()


def once(function: Callable[[], None]) -> Callable[[], None]:
    """A function of which only the first call counts; further ones do nothing."""
    waiting = [function]

    def call() -> None:
        if waiting:
            waiting.pop()()

    return call
