"""Links between ranks that carry no bulk: losses, aborts, who has arrived where. Every backend needs them.

`overlay` says who is linked to whom, `messages` what is said, `core` decides and `liveness` counts silence
(both pure), `plane` is the asyncio shell, `process` watches the processes of this host.
"""
