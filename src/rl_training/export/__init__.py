"""Export policies to files that need neither this package nor torch; see `writing.export_checkpoint`."""
