"""The rendezvous of other launchers' processes, where nobody has set MASTER_ADDR, or somebody listens there.

    agent_store   torchrun: rank 0 leaves its address in the agent's own store, which has MASTER_PORT
    pmi           MPICH: … in the launcher's key-value space
    open_mpi      Open MPI: … in a file in the job's own folder, on one host
    slurm         rank 0 listens at a port made of the numbers of job and step, on the step's first host

But for Slurm rank 0 listens on a free port first, and tells then: there is no port to fight for. Each file
has `meet(invitation, point)`, which `handlers` calls where `meeting_point` has decided for it.
"""
