"""Speed, memory and accuracy, measured: `python -m benchmarks`, `python -m benchmarks.rules`."""
