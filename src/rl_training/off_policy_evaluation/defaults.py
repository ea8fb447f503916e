"""Defaults of off-policy evaluation. Does not import torch, so that `--help` stays fast."""

BOOTSTRAPS = 5
UPDATES = 10_000
VALIDATION_FRACTION = 0.0
SEED = 0
DEVICE = "auto"

# Defaults of a selection. Values converge in about 1 / (tau (1 - gamma)) updates: 4,000 with this discount.
CRITICS = 10
SELECTION_UPDATES = 20_000
SELECTION_GAMMA = 0.995
