"""Public helpers for testing programs (and implementations) of aiodist. Nothing in the package imports them."""
