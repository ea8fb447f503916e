"""What is judged with where nothing is said; without torch, so that the help of a command can tell it at once."""

BOOTSTRAPS = 5
UPDATES = 10_000
VALIDATION_FRACTION = 0.0
SEED = 0
DEVICE = "auto"
