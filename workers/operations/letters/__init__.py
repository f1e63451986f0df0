"""Lists, chooses, redrives, moves, purges, imports and archives dead letters."""
