"""Formats, byte by byte, as pure functions.

    frame           the header of 96 bytes on data connections, and its kinds
    handshake       the first messages of every connection: proof of the secret, and each end's card
    seal            what authenticates all later bytes where there is no TLS
    local_message   the handshake that proves that two processes share memory
    messages        requests and answers of the store, in msgpack
    calls           calls between two processes
    objects         objects that users send; `repeats`: what writing one costs
    bounded         msgpack whose lengths are checked before memory is taken; `bounded_json`: JSON likewise
    typed           JSON of another process, as a dataclass, checked

Every decoder takes memory in proportion to its input, and raises `WireError`.
"""
