"""One attempt of a task, in the pool's child: it runs, and what follows is decided."""
