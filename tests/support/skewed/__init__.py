"""The folder of `sitecustomize`, for the path of a worker with a wrong clock."""
