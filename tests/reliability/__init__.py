"""One module per promise of docs/reliability.md."""
