"""What backends for CUDA devices stand on: CuPy in one place, streams, copies, and who waits for events."""
