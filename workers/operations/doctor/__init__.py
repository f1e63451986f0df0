"""The doctor: what of an app, its broker and its workers will hurt, with why, and the exact fix.

`examination` looks; each other module has the checks of one kind, which are pure functions of what was `seen`.
"""
