"""Collective algorithms as data: rounds of sends, receives and reductions for one rank.

`steps` has the rounds, `select` chooses the algorithm, `costs` and `early` say when; each other file is one
algorithm. All are pure. `tests/backends/schedules/prover` proves that each delivers what it should.
"""
