"""The programs of the rank processes: one module per peer, and the loop that takes the driver's orders."""
