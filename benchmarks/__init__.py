"""Three questions, measured: `python -m benchmarks --help`."""
