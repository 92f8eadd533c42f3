"""Services: calls, streams and messages between two processes, outside of groups and across their epochs.

lines       a connection for each direction of a pair, opened by its first call; it belongs to no epoch
frames      the hot half of a connection: what leaves together, what comes (`fields`: of calls)
under_way   the calls without an answer, as both ends count them (pure)
way         what waits for a connection and for room, in one order (`queue`, pure)
caller      what this process asks of another: `asking` (pure), its end of that table
callee      what another asks of this one: `serving` (pure), its end; `running`, handlers; `answers`
handlers    what may be called by name; `records`, dataclasses by their fields; `mailbox`, messages
peers       who is where in this epoch, who is lost, and the ways to them
switchboard the process's: what users ask

codec       arguments and results as bytes, in a thread where they are large; refuses what is too large
outcomes    how a call ended, and the error that its caller gets
stream      a stream, as its caller reads it
connection, outbox    frames over a line, large ones in pieces
notes, overview       what is logged of handlers; what is under way, for those who look at the job
"""
