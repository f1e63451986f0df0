"""Names that no queue of an app may have: those of redelivery, kombu, Celery and the broker.

Only this module checks a name before it becomes a key on Redis or a queue on RabbitMQ; `middleware.transitions.homes` also asks the
broker. One list applies to all brokers, so that a setting does not become dangerous if the broker is exchanged.
"""

from __future__ import annotations

#: AMQP's limit for a name.
MAX_BYTES = 255
#: Complete names, beginnings and ends of names, and the owner of each.
NAMES = {
    **dict.fromkeys(
        (f"redelivery.{name}" for name in ("outcomes", "audit", "watching", "exporting", "journal", "looking")),
        "redelivery",
    ),
    **dict.fromkeys(("unacked", "unacked_index", "unacked_mutex"), "kombu"),
    "celeryev": "Celery",
}
BEGINNINGS = {
    **dict.fromkeys(("redelivery:", "redelivery.start.", "redelivery_delayed"), "redelivery"),
    "_kombu.": "kombu",
    **dict.fromkeys(("celeryev.", "celery_delayed_", "celery-task-meta-", "celery-taskset-meta-", "chord-unlock-"), "Celery"),
    "amq.": "RabbitMQ",
}
ENDS = {".pidbox": "Celery"}


def objection(name: object) -> str | None:
    """Why this may not be the name of a queue; None if it may."""
    if not isinstance(name, str) or not name:
        return "is no name"
    if not name.isprintable():
        return "has characters that cannot be printed"
    if len(name.encode()) > MAX_BYTES:
        return f"is longer than {MAX_BYTES} bytes"
    whose = NAMES.get(name) or _whose(name)
    return None if whose is None else f"is a name that {whose} uses itself"


def _whose(name: str) -> str | None:
    begins = (whose for each, whose in BEGINNINGS.items() if name.startswith(each))
    ends = (whose for each, whose in ENDS.items() if name.endswith(each))
    return next(iter((*begins, *ends)), None)
