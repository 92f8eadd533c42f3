"""The life of a draft at one member, as a table. Pure.

    (state, event) ─▶ next state

News of a draft comes by several ways, and in any order: over the old links, over those of the draft's own
world, from the arbiter. So an event that has no line here changes nothing. A dropped draft may still become
the epoch: it may have been formed elsewhere, and its convener may have asked the arbiter before it died.

docs/states.md draws it.
"""

from __future__ import annotations

from enum import Enum


class DraftState(Enum):
    """The state of a draft at one member."""

    UNHEARD = "nothing is known of it"
    DRAFTED = "its members form it now"
    FORMED = "its members are connected, and the arbiter is asked"
    UNRULED = "the arbiter could not answer, and is asked again while there is time"
    DROPPED = "it was given up, as far as is known here"
    EPOCH = "it is the next epoch, for ever"


class DraftEvent(Enum):
    """News of a draft."""

    HEARD = "its convener tells it"
    CONNECTED = "all its members are connected here"
    FAILED = "it cannot be formed, here or elsewhere"
    UNANSWERED = "the arbiter gives no answer"
    DECIDED = "the arbiter has decided for it"


TRANSITIONS: dict[tuple[DraftState, DraftEvent], DraftState] = {
    (DraftState.UNHEARD, DraftEvent.HEARD): DraftState.DRAFTED,
    (DraftState.UNHEARD, DraftEvent.FAILED): DraftState.DROPPED,
    (DraftState.UNHEARD, DraftEvent.DECIDED): DraftState.EPOCH,
    (DraftState.DRAFTED, DraftEvent.CONNECTED): DraftState.FORMED,
    (DraftState.DRAFTED, DraftEvent.FAILED): DraftState.DROPPED,
    (DraftState.DRAFTED, DraftEvent.DECIDED): DraftState.EPOCH,
    (DraftState.FORMED, DraftEvent.UNANSWERED): DraftState.UNRULED,
    (DraftState.FORMED, DraftEvent.FAILED): DraftState.DROPPED,
    (DraftState.FORMED, DraftEvent.DECIDED): DraftState.EPOCH,
    (DraftState.UNRULED, DraftEvent.FAILED): DraftState.DROPPED,
    (DraftState.UNRULED, DraftEvent.DECIDED): DraftState.EPOCH,
    (DraftState.DROPPED, DraftEvent.DECIDED): DraftState.EPOCH,
}


def after(state: DraftState, event: DraftEvent) -> DraftState:
    """The state of a draft after an event."""
    return TRANSITIONS.get((state, event), state)
