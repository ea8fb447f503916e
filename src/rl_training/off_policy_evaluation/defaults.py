"""Defaults of off-policy evaluation. Does not import torch, so that `--help` stays fast."""

BOOTSTRAPS = 5
UPDATES = 10_000
VALIDATION_FRACTION = 0.0
SEED = 0
DEVICE = "auto"
