"""The base of what works on CUDA devices: CuPy in one place, streams, copies, and waiting for events.

library     CuPy, and the devices that this process sees
streams     the streams that tensors may wait for; `completion`: an operation's place on them
waiter      the thread that waits for the events of one stream
arrays      device memory: allocation, copies, reductions; `kernels`: those that NCCL does not have
"""
