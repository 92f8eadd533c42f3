"""The launcher: starts workers, relays their output, restarts them, says which failed first.

    config          what the command line asks for; pure
    agent, crew     one node's part of a job; one attempt on one node
    place           a node's place in an attempt, and the variables of its workers; pure
    supervisor      when to stop workers, and by which signal; its times are those of `config`; pure
    restarts        whether to start again, and after how long; `verdict`: which failure came first, by
                    the texts of `base/errors` that workers print; pure
    report          the box at the end; `outcome`: the verdict as it is stored
    doing           what a worker does that others wait for
    worker/         one process, its output, and the end of all that it leaves behind
    nodes/          how the agents of several nodes meet, and the one that decides
    remote/         `aiodist launch`: agents started over ssh
    under_srun      agents that srun or mpirun started, one a node
    dashboard_process   the dashboard beside a job

`worker/` and `nodes/` do not import each other. Nothing here imports NumPy or torch. Contract:
docs/launching.md.
"""
