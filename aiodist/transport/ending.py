"""The end of a link, as a table: of data links and of control links, over sockets and in memory. Pure.

A link ends in one of three ways. One side closes it: it says goodbye, and goes on reading until the other has
said so, too; so what both had sent has arrived. Or what came was altered on the way: then nothing of it is
read any more, but the peer is told, or it would take this process for dead. Or the connection is gone. In
every case each side tells its user once, unless that user has closed the link itself.

The table is all there is: an event that it does not name in a stage changes nothing there. `docs/states.md`
shows it as a picture.
"""

from __future__ import annotations

import enum


class Stage(enum.Enum):
    """The stage of a link."""

    OPEN = "messages go both ways"
    CLOSING = "this side has said goodbye, and drops what it reads, up to the peer's goodbye"
    LEAVING = "nothing is read any more; the last message is on its way, behind all that waits"
    OVER = "the socket is closed, or about to be"


class EndingEvent(enum.Enum):
    """Something that may lead to the end of a link."""

    CLOSE = "this side closes"
    GOODBYE = "the peer's goodbye"
    ALTERED = "received bytes were altered"
    ACCUSED = "the peer found that sent bytes were altered"
    FAILED = "the connection failed, or the peer broke the protocol"
    SENT = "all that waited has left"
    LATE = "time is over"
    KILL = "killed"


STAGES: dict[tuple[Stage, EndingEvent], Stage] = {
    (Stage.OPEN, EndingEvent.CLOSE): Stage.CLOSING,
    (Stage.OPEN, EndingEvent.GOODBYE): Stage.LEAVING,
    (Stage.OPEN, EndingEvent.ALTERED): Stage.LEAVING,
    (Stage.OPEN, EndingEvent.ACCUSED): Stage.OVER,
    (Stage.OPEN, EndingEvent.FAILED): Stage.OVER,
    (Stage.OPEN, EndingEvent.KILL): Stage.OVER,
    (Stage.CLOSING, EndingEvent.GOODBYE): Stage.OVER,
    (Stage.CLOSING, EndingEvent.ALTERED): Stage.OVER,
    (Stage.CLOSING, EndingEvent.ACCUSED): Stage.OVER,
    (Stage.CLOSING, EndingEvent.FAILED): Stage.OVER,
    (Stage.CLOSING, EndingEvent.LATE): Stage.OVER,
    (Stage.CLOSING, EndingEvent.KILL): Stage.OVER,
    (Stage.LEAVING, EndingEvent.FAILED): Stage.OVER,
    (Stage.LEAVING, EndingEvent.SENT): Stage.OVER,
    (Stage.LEAVING, EndingEvent.LATE): Stage.OVER,
    (Stage.LEAVING, EndingEvent.KILL): Stage.OVER,
}
"""The next stage, by stage and event."""


class Ending:
    """The stage of one link.

    Attributes:
        stage: the present one.
        over: whether that is OVER.
    """

    __slots__ = ("over", "stage")

    def __init__(self) -> None:
        self.stage = Stage.OPEN
        self.over = False

    def happened(self, event: EndingEvent) -> Stage | None:
        """Go to the next stage. Returns the one that was left; None where the event changes nothing."""
        left = self.stage
        stage = STAGES.get((left, event))
        if stage is None:
            return None
        self.stage = stage
        self.over = stage is Stage.OVER
        return left
