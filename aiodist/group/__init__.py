"""The process group: checks a call, takes its number, hands it to the backend.

`process_group` is the public class; `arguments` checks what users pass; `flight` holds what has been
issued and its deadlines; `watch` listens to the control plane and finds out who is missing or disagrees;
`breakage` says how the end of a group is told to others.
"""

from aiodist.group.process_group import ProcessGroup

__all__ = ["ProcessGroup"]
