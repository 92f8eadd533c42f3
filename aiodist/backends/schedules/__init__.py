"""Collective algorithms as data: rounds of sends, receives and reductions for one rank.

    select      which algorithm, by kind, number of ranks and bytes; `costs`: the model behind it
    steps       the rounds that an algorithm is made of; `early`: when a receive may be posted
    hearing     from when on only data is waited for
    ring, chain, binomial, bruck, recursive, dissemination, pairwise, linear, composed    the algorithms

All are pure. `tests/backends/schedules/prover` proves that each delivers what it should.
"""
