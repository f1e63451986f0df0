"""Which process can be killed where, on RabbitMQ (`tests.faults.chaos.rabbit.boundary` explains the steps)."""

from __future__ import annotations

from tests.faults.chaos.plans.plan import FILE, around

__all__ = ["BOUNDARIES"]

#: Publications between sending and confirmation.
SENT = ("confirm.before",)
BOUNDARIES: dict[str, tuple[str, ...]] = {
    "worker": (
        *around("receive", "acknowledge", "defer", "dead_letter", "recover", "release", "redrive", "record"),
        *around("start", "declare", "keep", "rest"),
        *around("moving", "moved", "had"),
        *SENT,
    ),
    "child": (*around("run", "announce", "publish"), *FILE),
    "producer": (*around("announce", "publish", "declare", "publish_batch"), *SENT),
    "redrive": (*around("redrive", "record", "acknowledge", "look", "give_back", "moving", "moved"), *SENT),
    "move": (*around("move", "record", "acknowledge", "keep", "moving", "moved"), *SENT),
    "importer": (*around("import", "record", "acknowledge", "keep", "moving", "moved"), *SENT),
    "purge": (*around("record", "acknowledge", "moved"), *FILE),
    "archivist": (*around("look", "give_back"), *FILE),
    "cancel": around("record", "acknowledge"),
    "reschedule": (*around("reschedule", "record", "acknowledge"), *SENT),
    "exporter": (*around("acknowledge", "lock"), *FILE),
    "inventory": (*around("look", "give_back", "listen"), *FILE),
}
