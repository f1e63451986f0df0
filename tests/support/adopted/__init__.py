"""An app like a Django project's: a namespace, a task class, discovered tasks, and `Redelivery(app)` in between."""
