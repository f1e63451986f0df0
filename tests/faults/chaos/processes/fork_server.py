"""The fork server: one process that has imported everything and forks the processes of a run, so that a start costs no import.

Reads lines of JSON: {"number": n, "argv": [...], "env": {...}, "log": path}. Writes: {"number": n, "pid": p} and, when it has
ended, {"number": n, "ended": status}. The first word of `argv` is `worker`, `redelivery` or `produce`. It ends with its input.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from redelivery.workers.cli.main import redelivery
from redelivery.workers.duties import dispatcher, lease
from redelivery.workers.duties.bounds import retention
from redelivery.workers.duties.watch import letter_watch
from redelivery.workers.export import export
from tests.faults.chaos.processes import builds

#: A lead that expires soon: otherwise most of a run would have no dispatcher.
dispatcher.LEAD = 1.0
#: Whoever keeps or watches the letters does so every half a second, and not the same one for long; plain workers are kept away as
#: often.
retention.EVERY, retention.LEAD = 0.5, 0.3
letter_watch.EVERY, letter_watch.LEAD = 0.5, 0.3
lease.REFRESH_EVERY = 0.5
PRELOADED = (export,)
#: What differs from one broker to the next: where a process may die, and the app.
PACKAGE = os.environ["CHAOS_PACKAGE"]
boundary: Any = importlib.import_module(f"{PACKAGE}.boundary")
chaos_app: Any = importlib.import_module(f"{PACKAGE}.chaos_app")


def main() -> None:
    """Serve until the input ends."""
    numbers: dict[int, int] = {}
    buffer = b""
    print(json.dumps({"ready": True}), flush=True)  # noqa: T201 - the pipe to the harness
    while True:
        if select.select([0], [], [], 0.02)[0]:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if not pid:
                    _live(order)
                numbers[pid] = order["number"]
                print(json.dumps({"number": order["number"], "pid": pid}), flush=True)  # noqa: T201 - as above
        _reap(numbers)


def _reap(numbers: dict[int, int]) -> None:
    while numbers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        print(json.dumps({"number": numbers.pop(pid), "ended": os.waitstatus_to_exitcode(status)}), flush=True)  # noqa: T201


def _live(order: dict[str, Any]) -> None:
    """Be the process that was asked for; never returns."""
    status = 1
    try:
        os.setsid()
        null, log = os.open(os.devnull, os.O_RDONLY), os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(order["env"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        random.seed()
        builds.install()
        boundary.install()
        status = _run(order["argv"])
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else 1
    except BaseException:  # noqa: BLE001 - a forked process must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


def _run(argv: list[str]) -> int:
    if argv[0] == "worker":
        chaos_app.app.worker_main(argv)
    elif argv[0] == "produce":
        chaos_app.produce(argv[1], int(argv[2]), argv[3], argv[4])
    else:
        redelivery(["-A", f"{PACKAGE}.chaos_app", *argv[1:]], standalone_mode=True)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main()
