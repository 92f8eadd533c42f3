"""The making of a job's groups, epoch by epoch. Over `group`, which imports nothing from here.

    cards, mending ─▶ links ─▶ world ─▶ job ─▶ convening, candidate ─▶ regroup ─▶ beginning, newcomer
                                      agreement ─▶ listening ───┘

`world` is one process's part of an epoch, and `cards` what its members tell each other first; `mending`
makes torn control links anew; `job` outlives an epoch. `beginning` makes the first epoch, `regroup` each
next one: `listening` hears what the others say of it, `convening` drafts it and has it decided, `candidate`
forms a draft. `newcomer` is how a process joins a running job, `agreement` what survivors agree on.
"""
