"""On the path of a worker whose clock is wrong: the folder of its `sitecustomize`."""
