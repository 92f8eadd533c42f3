"""What backends for CUDA devices stand on: CuPy in one place, streams, events, copies, and who waits for them."""
