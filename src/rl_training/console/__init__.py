"""Commands of `rl-training`."""
