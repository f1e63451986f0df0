"""The scripts against a model: after every step each message is in the one place that the model says.

Hypothesis draws the steps: publications, receives and their repeats, transitions of living, stalled and fenced owners, calls made
twice, the dispatcher, the recoverer, operators. `MODEL_EXAMPLES=5000` draws so many runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.model.machine import Machine
from tests.support.lanes import is_full

if TYPE_CHECKING:
    from tests.support.servers import Server

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "0"))
#: How many runs by default. Those of the quick lane, and those with Debian's Redis, are fewer, since the scripts are the same.
BOUNDED = {"valkey": 60, "redis": 15, "quick": 20}


@pytest.mark.timeout(0)
def test_the_scripts_do_what_the_model_says(any_server: Server, request: pytest.FixtureRequest) -> None:
    """Nothing is lost, doubled, early or out of order, and each step has its answer and its event."""
    kind = "quick" if not is_full(request.config) else "valkey" if "valkey" in any_server.binary else "redis"
    profile = settings(
        max_examples=EXAMPLES or BOUNDED[kind],
        stateful_step_count=60,
        database=None,
        print_blob=bool(EXAMPLES),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(type("Machine", (Machine,), {"server": any_server}), settings=profile)
