"""A run and its parts: settings, folder, clock, callbacks, evaluation, checkpoints; and N runs trained together."""
