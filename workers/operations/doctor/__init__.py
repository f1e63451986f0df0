"""The doctor: finds problems of an app, its broker and its workers, and says why each matters and how to fix it.

`examination` collects the answers of the broker and the workers (`seen`). The checks are pure functions of these answers.
"""
