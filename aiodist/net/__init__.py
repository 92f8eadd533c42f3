"""Sockets before anybody is known: where processes listen, who waits there, who is turned away, and TLS.

`sockets` binds and connects, `listener` takes connections, which wait in the `admission` until they say a first
word; `refusals` logs who was refused; `secure` is TLS on a non-blocking socket; `near` is a Unix socket
beside a TCP port; `descriptors` come over one; `polling` looks again before it sleeps.
"""
