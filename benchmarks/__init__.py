"""aiodist beside torch's gloo, Open MPI and MPICH, interleaved in one run: `python -m benchmarks --help`."""
