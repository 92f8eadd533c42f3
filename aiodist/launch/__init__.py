"""The per-node launcher: starts workers, relays their output, mends failures, says which came first."""
