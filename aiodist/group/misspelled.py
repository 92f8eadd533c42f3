"""A note on errors about arguments that a call does not have: which one was meant, perhaps.

Python refuses such a call before anything of ours runs, and to look at each call first would cost each call.
So the note is made where the error leaves the group.
"""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

from aiodist.base.torch_names import call_hint

_REFUSED = re.compile(r"(?:(\w+)\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def note_what_was_meant(error: BaseException | None, group: type) -> None:
    """Add a note to a TypeError about an argument that a method of a group, or one of aiodist's functions,
    does not have.

    Args:
        group: the class of groups.
    """
    refused = _REFUSED.match(str(error)) if type(error) is TypeError else None
    if error is None or refused is None:
        return
    owner, name, wrong = refused.groups()
    if owner is None:
        function = _function(error, name)
    else:
        function = getattr(group, name, None) if owner in {one.__name__ for one in group.__mro__} else None
    if function is None:
        return
    known = [one for one in inspect.signature(function).parameters if one != "self"]
    meant = call_hint(wrong, known)
    note = f"{name} takes {', '.join(known)}" + (f"; did you mean {meant}=?" if meant else "")
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _function(error: BaseException, name: str) -> Any:
    """Aiodist's function of a name, as the code that raised an error sees it: by name, or in a module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    seen = {**trace.tb_frame.f_globals, **trace.tb_frame.f_locals}
    modules = [getattr(value, name, None) for value in seen.values() if type(value) is ModuleType]
    for function in [seen[name]] if name in seen else modules:
        if inspect.isfunction(function) and function.__module__.partition(".")[0] == "aiodist":
            return function
    return None
