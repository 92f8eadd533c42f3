"""The recorder: what each rank did last, in memory that others can read while it is stuck or dead. Pure.

layout     what lies where in that memory
recorder   writes it: `Recorder` for a rank, `Track` for each of its groups
lines      the user's lines, each written down when it is seen first
reading    memory → what happened
dump       that as JSON, and back
"""

from aiodist.recorder.reading import Line, Record, Recording, read
from aiodist.recorder.recorder import Entry, Pending, Recorder, Sort, Track

__all__ = ["Entry", "Line", "Pending", "Record", "Recorder", "Recording", "Sort", "Track", "read"]
