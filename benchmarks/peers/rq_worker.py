"""Starts RQ workers below one process (`python -m benchmarks.peers.rq_worker COUNT`): RQ's default worker with its scheduler.

RQ's own worker pool starts no scheduler.
"""

from __future__ import annotations

import os
import sys

from redis import Redis
from rq import Worker

import benchmarks.peers.rq_tasks  # noqa: F401 - imported once, before the forks

__all__ = ["main"]


def main() -> None:
    """Fork the workers, and wait until all have ended."""
    for _ in range(int(sys.argv[1])):
        if os.fork() == 0:
            connection = Redis(unix_socket_path=os.environ["BENCH_SOCKET"])
            Worker(["default"], connection=connection).work(with_scheduler=True, logging_level="WARNING")
            os._exit(0)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
