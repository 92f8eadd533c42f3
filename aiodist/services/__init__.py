"""Services: calls, streams and messages between two processes, outside of groups and across their epochs.

lines       a connection for each direction of a pair, opened by its first call; it belongs to no epoch
caller      what this process asks of another: `asking` (pure), the table of calls without an answer
callee      what another asks of this one: `serving` (pure), the table of calls without an answer
handlers    what may be called by name; `records`, dataclasses by their fields; `mailbox`, messages
switchboard the process's: who is where in this epoch, who is lost
"""
