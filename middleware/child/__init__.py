"""One attempt of a task, in the pool's child: the task runs, and the attempt decides what follows."""
