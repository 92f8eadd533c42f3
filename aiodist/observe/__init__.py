"""Seeing what a job does, while it does it, stands still, or is dead: readers of the recorders' memory.

view      what is known of a rank at one moment, and of a job; pure
host      looks at the ranks of this host: their recorders' files, and what the kernel says of them
"""

from aiodist.observe.view import Doing, JobView, RankView, Stacks

__all__ = ["Doing", "JobView", "RankView", "Stacks"]
