"""Membership of the job, epoch by epoch: how the living agree on the next group.

    record ─▶ messages ─▶ assembly (who convenes, whom to invite, when it is decided)   pure
                      │     └─ drafts (the states of a draft, a table)                   pure
                      └▶ ballot   (one value a topic, by majority)                       pure
    finding: how an agreement ended, as a member tells the arbiter                      pure
    arbiter: what makes a decision final, the store or a majority                       shell
    newcomers: who waits at the store, and how they are invited                         shell

An epoch is formed first and decided afterwards: the members of a *draft* open all their connections,
and only then the arbiter is asked whether this draft is the next epoch. A draft that fails costs
nothing: the old epoch is still there. The arbiter gives everybody the same answer, however often
it is asked: on each call for the next epoch either a draft, or that it is void, and on a call only where all
before it are void. So there is never more than one next epoch, and who is not in it has been evicted.
"""
