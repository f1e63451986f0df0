"""The redrive: dead letters go back, changed or unchanged; if asked, a few of them go first."""
