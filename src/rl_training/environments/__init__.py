"""Environments: creation, stepping several of them in this or other processes, and evaluation of a policy."""
