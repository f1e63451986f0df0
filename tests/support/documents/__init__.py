"""The documents: what follows their commands, draws their screens and builds their site."""
