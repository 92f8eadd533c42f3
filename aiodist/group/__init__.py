"""The process group: checks a call, takes its number, hands it to the backend.

`process_group` is the public class and `core` what it stands on; its calls are in `collectives`,
`point_to_point`, `objects`, `subgroups` and `changes`. `shapes` are torch's other forms of them, and
`arguments` checks what users pass. `flight` holds what is in flight and its deadlines; `watch` listens to the
control plane and finds out who is missing or disagrees; `breakage` says how the end of a group is told.
`epochs` makes the groups that no other group makes, `default` remembers one for its loop.
"""

from typing import Final

from aiodist.group.process_group import ProcessGroup

WORLD: Final = None
"""torch's name for the loop's default group, where a call takes `group=`."""

__all__ = ["WORLD", "ProcessGroup"]
