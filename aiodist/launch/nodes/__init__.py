"""The agents of a job's nodes: how they meet, what they tell each other, and the one that decides.

    meeting      before the first attempt: who hosts, who comes in → `Nodes`
    nodes        the other nodes, as one sees them: what it says, asks and is told (alarms, leases, losses)
    messages     what lies in the agents' store, and what is read there; pure
    head         node 0: hosts the stores, lets nodes in, says what follows an attempt
    admission    the admission store, where nodes come in and wait for a place
    local_node   what an agent knows for the whole job, and so its place in an attempt; pure
    roster       who takes part in an attempt, and where they sit; pure
    store_access opens the job's stores, with its secret
    secret       where that comes from
    ports        addresses and ports of this machine

Nothing here knows of workers but how many there are; their processes are `launch/worker`'s.
"""
