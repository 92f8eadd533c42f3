"""The life of a draft at one member, as a table. Pure.

    (state, event) ─▶ next state

News of a draft comes by several ways, and in any order: over the old links, over those of the draft's own
world, from the arbiter. So an event that has no line here changes nothing. A dropped draft may still become
the epoch: it may have been formed elsewhere, and its convener may have asked the arbiter before it died.

docs/states.md draws it.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The state of a draft at one member."""

    UNHEARD = "nothing is known of it"
    DRAFTED = "its members form it now"
    FORMED = "its members are connected, and the arbiter is asked"
    UNRULED = "the arbiter could not answer, and is asked again while there is time"
    DROPPED = "it was given up, as far as is known here"
    EPOCH = "it is the next epoch, for ever"


class Event(Enum):
    """News of a draft."""

    HEARD = "its convener tells it"
    CONNECTED = "all its members are connected here"
    FAILED = "it cannot be formed, here or elsewhere"
    UNANSWERED = "the arbiter gives no answer"
    DECIDED = "the arbiter has decided for it"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.UNHEARD, Event.HEARD): State.DRAFTED,
    (State.UNHEARD, Event.FAILED): State.DROPPED,
    (State.UNHEARD, Event.DECIDED): State.EPOCH,
    (State.DRAFTED, Event.CONNECTED): State.FORMED,
    (State.DRAFTED, Event.FAILED): State.DROPPED,
    (State.DRAFTED, Event.DECIDED): State.EPOCH,
    (State.FORMED, Event.UNANSWERED): State.UNRULED,
    (State.FORMED, Event.FAILED): State.DROPPED,
    (State.FORMED, Event.DECIDED): State.EPOCH,
    (State.UNRULED, Event.FAILED): State.DROPPED,
    (State.UNRULED, Event.DECIDED): State.EPOCH,
    (State.DROPPED, Event.DECIDED): State.EPOCH,
}


def after(state: State, event: Event) -> State:
    """The state of a draft after an event."""
    return TRANSITIONS.get((state, event), state)
