"""torch.distributed on aiodist: `torch.distributed.init_process_group("aiodist")`, in a program as it is.

    entry       what `import torch` calls: it makes the name known, and loads nothing else
    rounds      each `init_process_group` has keys of its own in torch's store
    in_place_of_gloo    for programs that say "gloo", under `aiodist run --torch`
    meeting     how a group of torch's becomes one of ours: the ranks meet by torch's own store
    group       the group: every call of c10d that a group written in Python can serve
    arguments   torch's forms of tensors, ops and timeouts, as ours
    functional  kernels for the two functional collectives that C++ cannot hand to Python
    hooks       communication hooks of DDP: gradients with 8 or 4 bits an element
    reducer     what DDP's Reducer needs: buckets in memory that peers read, and Works that live long enough
    composed    calls that are several of ours: monitored_barrier, sums of sparse tensors
    work        the handle that torch waits for, and the future that DDP and hooks take from it

The loop is a portal's, in a thread of its own; a call puts its operation on the loop, and returns.
"""
