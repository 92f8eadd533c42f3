"""All targets."""

from __future__ import annotations

from tests.fuzz import (
    targets_control,
    targets_meeting,
    targets_seal,
    targets_store,
    targets_transport,
    targets_unauthenticated,
    targets_wire,
)

TARGETS = [
    *targets_wire.TARGETS,
    *targets_seal.TARGETS,
    *targets_control.TARGETS,
    *targets_transport.TARGETS,
    *targets_unauthenticated.TARGETS,
    *targets_store.TARGETS,
    *targets_meeting.TARGETS,
]
