"""The foundation of every district: errors, types, the table of operations, facts about this process.

    errors          the hierarchy of errors, drawn as a tree at its top, and their texts; those of PeerLost,
                    GroupAborted and CollectiveTimeout are read in workers' output by `launch/verdict`
    types           `ReduceOp`, which op goes with which dtype, and `Call`: what all ranks must agree on
    operations      the table of operations and of what each argument holds; argument checks, buffers,
                    proofs and conformance programs follow from it
    timeouts        `timeout=` as seconds: a number or a timedelta; it has no defaults
    environment/    variables (ours, and launchers'), files and facts of this process
    backoff         the pauses between attempts of one thing: the curve; each caller gives its own numbers
    callers         whose code a file holds: the program's, the library's or somebody else's
    recent          the numbers that were added last: which groups are gone
    sanitize        text of others for a terminal: one line, no control characters, a bounded length
    terminal        whether an output takes colours, some colours, a progress bar
    torch_names     torch's names that are spelled differently here, and what to write instead

Nothing here opens a socket or needs a loop. Only `types` and `operations` import NumPy, so that the launcher
starts without it. Contract: docs/architecture.md, "The districts".
"""
