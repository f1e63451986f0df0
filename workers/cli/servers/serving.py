"""Commands that serve until a signal ends them: SIGTERM with exit code 0, SIGINT (Ctrl-C) with 130."""

from __future__ import annotations

import ipaddress
import logging
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ENDING = {signal.SIGINT, signal.SIGTERM}


def served(start: Callable[[], object], stop: Callable[[], object]) -> int:
    """Start, wait for a signal, stop. Returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # `sigwait` needs blocked signals. Block them before any thread starts: a thread inherits the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        start()
        number = signal.sigwait(ENDING)
        stop()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0 if number == signal.SIGTERM else 130


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
