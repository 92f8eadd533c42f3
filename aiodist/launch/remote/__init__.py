"""`aiodist launch`: one command starts an agent on each host, over ssh, and shows what comes of it.

    plan        everything that was asked for; pure
    hosts       which hosts, and how many workers on each: -H, hostfiles, filters; pure
    messages    what the launcher and an agent tell each other by the pipes of ssh; pure
    launcher    here: starts the agents, relays what they say, ends them
    shell       here: one agent's ssh, and what its failures mean
    discovery   here: hosts that come and go, as a script says
    link        there: the agent's side of the pipes; what ssh starts is `cli/commands/agent`
    through     srun or mpirun in place of ssh

The agents are those of `aiodist run`, and meet as those do, where node 0 tells: the launcher passes that on.
So nothing of a job's traffic goes through it but output. An agent ends its workers when its stdin ends, or is
silent for longer than `messages.SILENCE`: it outlives neither the launcher nor the cable.
"""
