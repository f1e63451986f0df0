"""Operators at work: commands, the doctor, dead letters, and a look at what became of all messages."""
