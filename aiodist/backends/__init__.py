"""How operations are carried out, and on which arrays.

    base            `HostEngine` and `Carrier`, the interfaces; `inner`: operations that are parts of a user's
    work            `Work`, the awaitable handle; `forgotten`: handles that were dropped un-awaited
    arrays/         tensors of every library as arrays on the same memory; copies and reductions
    schedules/      collective algorithms as data
    buffers         which memory an operation works on; `release`: when nothing uses it any more
    host/           NumPy memory over shared memory and TCP
    foreign/        what all libraries of others leave to us; `mpi/`, `nccl/` stand on it
    cuda/           streams, events, kernels; `staged/`: device tensors through the host
    choice          what carries out a job's operations, from the `registry`; `carriers`: in one group
    threads         a thread for jobs in their order; from a thread back to the loop

A backend knows a group's members and its context, and not the class that users hold. Only `arrays/` imports
torch; only `cuda/` and `nccl/` import CuPy; only `mpi/` imports mpi4py. Contract: docs/write-a-backend.md.
"""
