"""Measurements: speed, learning and overhead, beside the peers that are installed. Programs, not tests."""
