"""Collectives among ranks of one host, through memory that each writes and the others read.

    board      where groups' slots lie in each member's segment, and when a region may be used again
    hub        one process's side: its segment, sleeping and waking peers, polling, progress on the loop
    plan       what all ranks agree on for one kind of call, worked out once: digest, path, block size
    bulk       the thread that carries out large ones
    group      starts operations, and ends them when the group breaks

A rank publishes an operation in its slot: signature, where its data lies, and last one word that says
which operation it is. Everything that comes after is a number in the slot that only grows, written by its
owner and read by the others. The compiled engine (`aiodist/_engine`) does that; without it this package is
not used, and messages over sockets carry everything.
"""
