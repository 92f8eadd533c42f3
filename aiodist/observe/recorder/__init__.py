"""The recorder: what each rank did last, in memory that others can read while it is stuck or dead.

layout     what lies where in that memory
recorder   writes it: `Recorder` for a rank, `Track` for each of its groups
lines      lines of the user's program, each written down at its first use
reading    from memory to what happened
dump       that as JSON, and back
records    the memory as files that outlive their process; the rest is pure
"""

from aiodist.observe.recorder.reading import Line, Record, Recording, read
from aiodist.observe.recorder.recorder import CallSite, Entry, Pending, Recorder, Track

__all__ = ["CallSite", "Entry", "Line", "Pending", "Record", "Recorder", "Recording", "Track", "read"]
