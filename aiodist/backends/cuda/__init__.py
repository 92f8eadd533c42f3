"""The base of backends for CUDA devices: CuPy in one place, streams, copies, and waiting for events."""
