"""The tests' app with Sentry's SDK, whose events go to a file. With `SENTRY_FIRST` Sentry starts before the app is made."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.transport import Transport

if TYPE_CHECKING:
    from sentry_sdk.envelope import Envelope

__all__ = ["app"]


class Written(Transport):
    """Appends a line for each event and each transaction."""

    def capture_envelope(self, envelope: Envelope) -> None:
        items = [{"kind": item.type, **item.payload.json} for item in envelope.items if item.payload.json is not None]
        with Path(os.environ["SHOP_RUNS"]).with_name("sentry").open("a") as out:
            out.write("".join(json.dumps(item, default=str) + "\n" for item in items))


def watched() -> None:
    """Start Sentry, as its documentation says."""
    sentry_sdk.init(dsn="https://key@localhost/1", transport=Written, traces_sample_rate=1.0)


if os.environ.get("SENTRY_FIRST"):
    watched()

from tests.support.shop import app  # noqa: E402 - Sentry is started before it or after it

if not os.environ.get("SENTRY_FIRST"):
    watched()


@app.task
def passes_on(task: str, *args: Any) -> str:
    """Publishes another task, and returns its id."""
    return str(app.send_task(f"tests.support.shop.{task}", args).id)


@app.task
def applies(task: str, *args: Any) -> str:
    """Publishes another task with its `apply_async`, which Sentry instruments. Returns its id."""
    return str(app.tasks[f"tests.support.shop.{task}"].apply_async(args).id)
