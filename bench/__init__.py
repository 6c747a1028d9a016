"""Benchmarks: each measures one promise of the README and prints what it found. Run as ``python -m bench.NAME``."""
