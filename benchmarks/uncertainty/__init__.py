"""Uncertainty on real data, against what people use: `python -m benchmarks.uncertainty`."""
