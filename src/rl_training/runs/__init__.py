"""Training runs: settings, folder, clock, callbacks, evaluation, checkpoints; `fleet.train` trains N runs."""
