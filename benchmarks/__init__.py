"""Benchmarks of speed, learning results, overhead and parity, with comparisons to other installed libraries."""
