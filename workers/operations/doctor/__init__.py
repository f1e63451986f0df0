"""The doctor: what will hurt in an app, its broker and its workers, why, and the exact fix.

`examination` collects what the broker and the workers say (`seen`). Most other modules have the checks of one kind, which are pure
functions of it.
"""
