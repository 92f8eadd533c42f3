"""Memory that one process writes and others on the same host map read-only."""
