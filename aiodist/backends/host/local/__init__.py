"""Collectives among ranks of one host, through memory that each writes and the others read.

    board      the layout: a group's slots in each member's segment, and when a rank may read what
    hub        one process's side: its segment, sleeping and waking peers, polling, progress on the loop
    plan       what all ranks agree on for one kind of call, worked out once: digest, path, block size
    exchange   one running operation; `direct`, `share`, `reduce_all`, `wired` do it, `kinds` chooses
    bulk       the thread that runs large ones
    short      the way of plain arrays into the exchanges, without anything that is not needed
    group      starts operations, and ends them when the group breaks

A rank publishes an operation in its slot: signature, where its data lies, and last one word that says
which operation it is. Everything that comes after is a number in the slot that only grows, written by its
owner and read by the others. On x86-64 plain stores by Python are seen in order; elsewhere this package is
not used (`hub.supported`), and messages over sockets carry everything.
"""
