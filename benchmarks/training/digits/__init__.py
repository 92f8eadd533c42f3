"""Training whose ranks are killed at random, beside the same training without deaths."""
