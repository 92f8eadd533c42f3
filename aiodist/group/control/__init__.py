"""Links between ranks that carry no bulk: losses, aborts, who has arrived where. Every backend needs them.

    messages      what is sent on a link, and its bytes; pure
    overlay       which ranks are linked; pure
    core          decides what is flooded and what is routed, and remembers who is gone; pure
    plane         the asyncio shell of `core`: links in, links out, listeners
    liveness      how long a peer or its loop may be silent, and when it is lost; pure
    heartbeat     the asyncio shell of `liveness`: its timer and pings
    inquiry       one question to all members of a group; pure
    early         messages of groups that are not made here yet; pure
    resend_buffer messages for a neighbour whose link is torn; pure
    clocks        how far neighbours' clocks are apart; pure
    process       watches the processes of this host; `sentries`: threads whose end tells of a process's
    watchdog      a thread that notices that the loop does not turn

How one link ends, goodbye included, is `transport/ending` and `transport/control_link`.
"""
