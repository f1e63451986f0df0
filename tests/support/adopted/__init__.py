"""An app in the manner of a Django project: a namespace, its own task class, discovered tasks, `Redelivery(app)` in between."""
