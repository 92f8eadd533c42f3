"""The errors of the compiled engine that its users tell apart."""


class RingError(Exception):
    """An error of the process at the other end of a ring: it says what no ring can be like."""
