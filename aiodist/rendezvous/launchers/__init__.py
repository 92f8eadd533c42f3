"""The rendezvous of other launchers' processes, where nobody has set MASTER_ADDR, or somebody listens there.

    torch_group   torch.distributed is initialised here: rank 0 leaves its address in torch's store
    jax_group     jax.distributed likewise: … in its coordinator's store
    agent_store   torchrun: … in the agent's own store, which has MASTER_PORT
    horovod       horovodrun: … in its key-value store
    pmi           MPICH, Intel MPI: … in the launcher's key-value space
    open_mpi      Open MPI: … in a file in mpirun's folder, on one host; by PMIx, on several (`pmix_process`)
    shared_port   at MASTER_PORT, which is free again when all know it
    slurm         rank 0 listens at a port made of the numbers of job and step, on the step's first host

But for Slurm rank 0 listens on a free port first, and writes its address then (`address_exchange`), so that
no two processes need the same port. Each way has a `meet`, which `handlers` calls where `meeting_point` has
decided for it; the libraries' are asked first, by `group/runtime/initialised_libraries`.
"""
