"""What other launchers offer their processes to find each other by."""

from aiodist.rendezvous.launchers.ways import meet_by_launcher

__all__ = ["meet_by_launcher"]
