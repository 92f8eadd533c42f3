"""Collective algorithms as data: schedules, and their selection. The tests have a prover that checks them."""
