"""Benchmarks: speed, learning, overhead and parity, compared with the peers that are installed."""
