"""What happens when something fails, counted: `python -m benchmarks.failures`."""
