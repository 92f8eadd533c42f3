"""What is measured: each suite gives its steps, and has the functions that ranks run for it."""
