"""Deprecated: see `rl_training.runtime.populations`."""
