"""Wire formats, byte by byte: the handshake, frame headers, rendezvous messages. No I/O."""
