"""Checkpoints of every format there has been."""
