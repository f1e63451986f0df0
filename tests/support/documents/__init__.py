"""Tools for the documents: run their commands, draw their screens, build their site."""
