"""Channels: directed, ordered message paths between processes, over memory, TCP or shared memory."""
