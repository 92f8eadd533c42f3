"""Sockets before authentication: where processes listen, who waits there, who is refused, and TLS.

`sockets` binds and connects, `listener` takes connections, which wait in `admission` until they send
something; `refusals` logs who was refused; `secure` is TLS on a non-blocking socket; `local_socket` is a
Unix socket beside a TCP port; `descriptors` come over one; `polling` looks again before it sleeps;
`kept` are ports that make way.
"""
