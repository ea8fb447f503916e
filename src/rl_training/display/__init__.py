"""What a run or a command shows: a progress bar, lines, tables, warnings, numbers as text."""
