"""Values that are computed at their first use."""

from __future__ import annotations

import subprocess
import sys

from redelivery.lazily import cached_property

#: A thread computes the value of one object while the process forks. The child needs the value of another object.
FORKED = """
import os, signal, threading
from redelivery.middleware.brokers.redis import scripts

begun, never = threading.Event(), threading.Event()
read = scripts.source

def slow(name):
    if name == "renew":
        begun.set()
        never.wait()
    return read(name)

scripts.source = slow
threading.Thread(target=lambda: scripts.Script("renew").sha, daemon=True).start()
begun.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(len(scripts.Script("publish").sha))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    """The thread does not exist in the child, so a lock that it held would never be released."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["40"], done.stderr


def test_a_value_is_made_once() -> None:
    """It is stored on its object, and has the docstring of its function."""
    made: list[object] = []

    class Thing:
        @cached_property
        def value(self) -> int:
            """The value."""
            made.append(self)
            return len(made)

    one, other = Thing(), Thing()
    assert (one.value, one.value, other.value) == (1, 1, 2)
    assert made == [one, other]
    assert Thing.value.__doc__ == "The value."
