"""Counts of what happens when something fails: `python -m benchmarks.deaths`."""
