"""The redrive: dead letters go back, changed or unchanged, a few of them first where that is asked for."""
