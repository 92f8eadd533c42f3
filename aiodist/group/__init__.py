"""The process group: checks a call, takes its number, hands it to the backend.

    numbers, roster, family, flight, batch, composed, watch ─▶ core
        ─▶ collectives, point_to_point, objects, subgroups, changes ─▶ process_group ─▶ default, epochs

`process_group` is the public class. It hands its calls to parts, and those stand on `core`: numbers,
submits, life and the break. Imports go one way: no part knows the class that it is part of. `shapes` are
torch's other forms of the calls, and `arguments` checks what users pass. `numbers` counts operations;
`flight` holds those that are in flight, and their deadlines; `batch` and `composed` have what begins later.
`roster` says who is a member, `family` which groups end together. `watch` listens to the control plane and
finds out who is missing or disagrees; `breakage` says how the end of a group is told. `epochs` makes the
groups that no other group makes, `default` remembers one for its loop.
"""

from typing import Final

from aiodist.group.feedback import ErrorFeedback
from aiodist.group.process_group import ProcessGroup

WORLD: Final = None
"""torch's name for the loop's default group, where a call takes `group=`."""

__all__ = ["WORLD", "ErrorFeedback", "ProcessGroup"]
