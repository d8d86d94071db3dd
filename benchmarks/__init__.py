"""Benchmarks: each prints our figure, the peer's and the ratio, from one run. `python -m benchmarks --help`."""
