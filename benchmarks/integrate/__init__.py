"""Stock networks under `integrate()` against sampled masks; run by `python -m benchmarks.integrate`."""
