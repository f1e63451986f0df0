"""Starts many Celery workers: imports the app once, and forks each worker from this process.

`python -m benchmarks.herd COUNT` starts them and waits. A worker has one process (pool solo), so a hundred fit on a machine.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

__all__ = ["main"]

#: The number of workers that start at once. A hundred would starve each other, and lose their leases before they begin.
AT_ONCE = 4


def main() -> None:
    """Fork the workers, and wait until all have ended."""
    from benchmarks.app import app  # noqa: PLC0415 - imported here, it is shared by all

    app.loader.import_default_modules()
    app.finalize()
    for number in range(int(sys.argv[1])):
        _wait_for(number - AT_ONCE + 1)
        if os.fork() == 0:
            words = ["worker", "-P", "solo", "-n", f"w{number}@herd", "-l", "WARNING", "--without-gossip", "--without-mingle"]
            app.worker_main(words)
            os._exit(0)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _wait_for(count: int) -> None:
    ready = Path(os.environ["BENCH_READY"])
    while len(list(ready.parent.glob(f"{ready.name}.*"))) < count:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
