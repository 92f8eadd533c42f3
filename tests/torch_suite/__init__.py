"""torch's own tests of its backends, on ours: `python -m tests.torch_suite`."""
