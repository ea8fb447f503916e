"""Measurements: speed, learning, overhead and parity, beside the peers that are installed. Programs, not tests."""
