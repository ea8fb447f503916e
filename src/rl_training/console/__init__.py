"""What the command line is made of: one-line errors, tables, and the commands on data files."""
