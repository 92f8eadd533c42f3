"""Parts that `aiodist bench` and `benchmarks/` share: cases with values to check, timing, units, tables."""
