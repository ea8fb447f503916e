"""Policies as files that need neither this package nor torch: one door, `export_checkpoint` in `writing`."""
