"""Checkpoints of every format that was released."""
