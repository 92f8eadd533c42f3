"""Whether training converges, over slow cables and through deaths: `python -m benchmarks training`."""
