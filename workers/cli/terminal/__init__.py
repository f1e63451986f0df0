"""The terminal: tables, JSON, colours, widths and progress. Every other command uses it."""
