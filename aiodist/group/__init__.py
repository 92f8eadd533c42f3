"""Process groups: the calls, the members, their life, and services between members.

    process_group   the class that users hold; it hands its calls to the parts below
    core            submits operations, keeps the group's life, breaks it
    requests        what a call asks for, checked; `arguments`, `lists`, `misspelled`: what users pass
    objects, subgroups, changes, calls, quantized, shapes    calls of one kind each
    numbers         the one counter of operations; `deadlines`: operations in flight, by their deadlines
    batch, composed what begins later: `coalesce()` blocks, operations made of others
    roster, seats   the members, and which of them share a node; `family`: groups that end together
    watch           which rank is missing, lost or disagrees, and the error that says so
    breakage        these errors as values on control links, and back: members see no more than it packs
    control/        links without bulk: losses, aborts, heartbeats; their own ends are `transport/ending`'s
    membership/     which processes make the next epoch
    epochs/         makes a job's groups, epoch by epoch
    services/       calls, streams, messages between two processes; their frames and largest sizes are in
                    `net/wire/calls`, what is too large is refused in `services/codec`
    runtime/        `init_process_group`, `join`, `run`
    functional/     the module-level calls with torch's signatures

No part knows the class that it is part of, and the folders do not import each other in a circle. Contract:
docs/work.md, docs/services.md, docs/failures.md; laws 1 to 13 in docs/architecture.md.
"""

from typing import Final

from aiodist.group.feedback import ErrorFeedback
from aiodist.group.process_group import ProcessGroup

WORLD: Final = None
"""torch's name for the loop's default group, where a call takes `group=`."""

__all__ = ["WORLD", "ErrorFeedback", "ProcessGroup"]
