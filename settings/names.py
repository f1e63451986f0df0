"""Names that no queue of an app may have: those of redelivery, kombu, Celery and the broker.

One list applies to all brokers, so that a change of the broker makes no setting dangerous. `middleware.transitions.homes` also asks
the broker.
"""

from __future__ import annotations

#: AMQP's limit for a name.
MAX_BYTES = 255
#: Whole names, prefixes and suffixes, and the owner of each.
NAMES = {
    **dict.fromkeys(
        (f"redelivery.{name}" for name in ("outcomes", "audit", "watching", "exporting", "journal", "looking")),
        "redelivery",
    ),
    **dict.fromkeys(("unacked", "unacked_index", "unacked_mutex"), "kombu"),
    "celeryev": "Celery",
}
PREFIXES = {
    **dict.fromkeys(("redelivery:", "redelivery.start.", "redelivery_delayed"), "redelivery"),
    "_kombu.": "kombu",
    **dict.fromkeys(("celeryev.", "celery_delayed_", "celery-task-meta-", "celery-taskset-meta-", "chord-unlock-"), "Celery"),
    "amq.": "RabbitMQ",
}
SUFFIXES = {".pidbox": "Celery"}


def objection(name: object) -> str | None:
    """Why this may not be the name of a queue; None if it may."""
    if not isinstance(name, str) or not name:
        return "is no name"
    if not name.isprintable():
        return "has characters that cannot be printed"
    if len(name.encode()) > MAX_BYTES:
        return f"is longer than {MAX_BYTES} bytes"
    owner = NAMES.get(name) or _owner_of(name)
    return None if owner is None else f"is a name that {owner} uses itself"


def _owner_of(name: str) -> str | None:
    by_prefix = (owner for prefix, owner in PREFIXES.items() if name.startswith(prefix))
    by_suffix = (owner for suffix, owner in SUFFIXES.items() if name.endswith(suffix))
    return next(iter((*by_prefix, *by_suffix)), None)
