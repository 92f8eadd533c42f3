"""Sockets and the bytes on them, independent of what the process at the other end is.

    sockets         bind and connect; `local_socket`: a Unix socket beside a TCP port
    listener        takes connections, which wait in `admission` until they are authenticated
    refusals        logs what was refused, at a bounded rate
    opening         from a connected socket to an authenticated peer: TLS, handshake, records
    secure, sealed  TLS on a non-blocking socket; authentication of each record without TLS
    records         records of the sealed stream
    buffered        bytes that the socket could not take yet
    users           whose process is at the other end; `sock_diag`: the kernel's answer to that
    descriptors     open files that a peer hands over by a Unix socket
    turn, polling   one budget of polling for each turn of the loop; polling before sleeping
    alarm           a timer that can be set to another time: one for many deadlines
    tasks           those that end before who started them, and the ends of futures
    stop_signals    the signals that ask a command to stop
    within          so many seconds at most, and the error that says so
    forks           what a forked child gets in the place of its parent's sockets and loops
    kept            servers of other libraries that keep a port for this process
    shortage        errors by which this host says what it lacks: descriptors, memory, ports
    traffic         what the kernel has counted on a TCP connection
    wire/           formats and their largest sizes, byte by byte: handshake, frames, store, calls, objects

It knows no rank and no group. Contract: docs/security.md for what an unauthenticated peer may cause.
"""
