"""Environments: making them, stepping several, in this process or in others, and playing with a policy."""
