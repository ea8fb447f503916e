"""Console output: progress bar, lines, tables, warnings, numbers as text."""
