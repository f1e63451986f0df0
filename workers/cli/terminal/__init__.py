"""The terminal: tables, JSON, colours, widths and progress, for all commands."""
