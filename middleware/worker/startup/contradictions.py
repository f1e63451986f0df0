"""Settings of Celery that contradict redelivery's: what each would break, and what to do.

Only settings that break a guarantee are refused; `redelivery adopt` reports those without effect. No connection is opened.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.transport import virtual

from ...child.task_defaults import UNSET, explicit_app_setting, explicit_task_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery import Celery
    from kombu import Connection

    from ...runtime import Runtime

CRASH = "with redelivery a crash counts as an attempt, and the message is delivered again or dead-lettered"
ENDED = "redelivery dead-letters and acknowledges a failed message in one step, so Celery must not reject it as well"
TWICE = "the task would run twice: Celery would publish it again, and redelivery would deliver it again"

#: Setting, refused value, why, and what to do.
REFUSED: tuple[tuple[str, Any, str, str], ...] = (
    ("task_reject_on_worker_lost", False, CRASH, "remove the setting, or set enabled = false for the tasks that need it"),
    ("task_acks_on_failure_or_timeout", False, ENDED, "remove the setting"),
    ("task_acks_on_failure", False, ENDED, "remove the setting"),
    ("task_acks_on_timeout", False, ENDED, "remove the setting"),
    ("task_retry_on_worker_lost", True, TWICE, "remove the setting; max_delivery_attempts is the limit"),
    (
        "worker_cancel_long_running_tasks_on_connection_loss",
        True,
        "if the connection is lost, the worker keeps its lease and its tasks: a cancelled task would not be delivered again",
        "remove the setting",
    ),
    ("task_protocol", 1, "its messages have no headers to count attempts in", "remove the setting, or set it to 2"),
)


class Contradiction(NamedTuple):
    """What is refused, why (empty if `what` says it), and what to do."""

    what: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.fix}" if self.why else f"{self.what}: {self.fix}"


def contradictions(runtime: Runtime) -> list[str]:
    """What must change before a worker of this app can start, a line each. `mode="observe"` checks only the broker."""
    return [str(each) for each in found_contradictions(runtime)]


def found_contradictions(runtime: Runtime) -> list[Contradiction]:
    """As `contradictions`, in parts."""
    app = runtime.app
    found = [*_broker(app), *_extras(runtime)]
    if runtime.enforces:
        found += _settings(app)
        found += _tasks(runtime)
        found += _queues(runtime)
    return found


def _extras(runtime: Runtime) -> Iterator[Contradiction]:
    if runtime.settings.metrics_listen is not None and find_spec("prometheus_client") is None:
        yield Contradiction("metrics_listen", "prometheus_client is not installed", "install redelivery[metrics]")
    if runtime.settings.opentelemetry and find_spec("opentelemetry") is None:
        yield Contradiction("opentelemetry", "its API is not installed", "install redelivery[otel]")


def _settings(app: Celery) -> Iterator[Contradiction]:
    for setting, value, why, fix in REFUSED:
        explicit = explicit_app_setting(app, setting)
        if explicit is not UNSET and explicit == value:
            yield Contradiction(f"{setting} = {value!r} contradicts Redelivery", why, fix)


def _tasks(runtime: Runtime) -> Iterator[Contradiction]:
    queues = list(runtime.app.amqp.queues.consume_from)
    for name, task in sorted(runtime.app.tasks.items()):
        if not any(runtime.policies.is_enabled(name, queue) for queue in queues):
            continue
        for setting, value, why, fix in REFUSED:
            attribute = setting.removeprefix("task_")
            if attribute == "reject_on_worker_lost":  # without effect on one task: `adopt` reports it
                continue
            explicit = explicit_task_option(task, attribute) if setting.startswith("task_") else UNSET
            if explicit is not UNSET and explicit == value:
                what = f"task {name!r}: {attribute}={value!r} contradicts Redelivery"
                yield Contradiction(what, why, fix.replace("setting", "option"))


def _queues(runtime: Runtime) -> Iterator[Contradiction]:
    for name, queue in sorted(runtime.app.amqp.queues.consume_from.items()):
        is_broadcast = queue.exchange is not None and queue.exchange.type == "fanout"
        if queue.no_ack and not is_broadcast and runtime.policies.is_enabled("", name):
            yield Contradiction(
                f"queue {name!r}: no_ack=True contradicts Redelivery",
                "a worker that dies loses its messages",
                "remove the option, or set enabled = false for the queue",
            )


#: Policy fields that only Redis supports, and what does the same on RabbitMQ.
ON_RABBITMQ = {
    "redeliveries_per_second": "use longer delays, or a rate_limit on the task",
    "max_length": "declare the queue with x-max-length and x-overflow=reject-publish",
    "dead_letter_time_to_live": "purge with `redelivery dlq purge`",
    "max_dead_letters": "purge with `redelivery dlq purge`",
    "auto_delete_dead_letter_resources": "delete the empty queue with rabbitmqctl delete_queue --if-empty",
}
#: The same for the brokers of kombu's other transports.
ON_OTHERS = {
    "redeliveries_per_second": "use longer delays, or a rate_limit on the task",
    "max_length": "bound the queue by the broker's own means, if it has any",
    "dead_letter_time_to_live": "let a dead_letter_handler decide about old dead letters",
    "max_dead_letters": "let a dead_letter_handler decide about dead letters",
    "auto_delete_dead_letter_resources": "delete empty queues by the broker's own means",
}


def _rows(app: Celery) -> list[Mapping[str, Any]]:
    """The policy fields of each row of the settings, and of each task's options."""
    runtime = app.redelivery
    rows = [row.fields for row in runtime.settings.rows]
    return [*rows, *(options.fields for name in app.tasks if (options := runtime.policies.options_of(name)) is not None)]


def _unsupported(app: Celery, broker: str, instead: Mapping[str, str]) -> Iterator[Contradiction]:
    """Refuse set fields that this broker does not support, so that they are not silently ignored."""
    rows = _rows(app)
    for field, remedy in instead.items():
        if any(fields.get(field) for fields in rows):
            yield Contradiction(f"{field} is not supported on {broker}", "", f"remove it; {remedy}")


def _on_rabbitmq(app: Celery) -> Iterator[Contradiction]:
    yield from _unsupported(app, "RabbitMQ", ON_RABBITMQ)
    if app.redelivery.settings.wait_replicas:
        yield Contradiction(
            "wait_replicas is only for Redis", "", "remove it; a quorum queue confirms what most of its replicas have"
        )


def _on_other_broker(app: Celery, broker: str) -> Iterator[Contradiction]:
    """Find what no other broker supports (`brokers.kombu.generic`)."""
    settings, rows = app.redelivery.settings, _rows(app)
    yield from _unsupported(app, broker, ON_OTHERS)
    if any(fields.get("persist_delivery_count") == "always" for fields in rows):
        yield Contradiction(
            f"persist_delivery_count is not supported on {broker}", "", "remove it; nothing there can record a start"
        )
    if any(fields.get("auto_create_dead_letter_resources") is False for fields in rows):
        yield Contradiction(
            f"auto_create_dead_letter_resources = False is not supported on {broker}", "", "remove it; nobody can see its queues"
        )
    if settings.wait_replicas:
        yield Contradiction(f"wait_replicas is not supported on {broker}, only on Redis", "", "remove it")
    if settings.outcome_export is not None:
        yield Contradiction(
            f"outcome_export is not supported on {broker}, which has no outcome log",
            "",
            "remove it; the workers' logs have the outcomes (outcome.recorded)",
        )


def _broker(app: Celery) -> Iterator[Contradiction]:
    read, write = app.conf.broker_read_url, app.conf.broker_write_url
    if read != write:
        yield Contradiction(
            "broker_read_url and broker_write_url differ", "a message is moved where it was received", "set broker_url alone"
        )
        return
    try:
        connection: Connection = app.connection_for_write()
        transport = connection.get_transport_cls()
    except KeyError as exc:
        yield Contradiction("broker_url cannot be used", str(exc.args[0]), "it looks like redis://host:6379/0")
        return
    if getattr(transport, "driver_type", None) == "amqp":
        yield from _on_rabbitmq(app)
        return
    if getattr(transport, "driver_type", None) != "redis":
        if issubclass(transport, virtual.Transport):
            yield from _on_other_broker(app, f"{connection.transport_cls}://")
        else:
            named = f"{connection.transport_cls}://"
            yield Contradiction(
                f"broker {named} is not supported by redelivery", "", "use redis://, amqp:// or a virtual transport of kombu's"
            )
        return
    if len(connection.alt) > 1 and not all(str(each).startswith("sentinel") for each in connection.alt):
        yield Contradiction(
            "broker_url names several servers", "a message is on only one of them", "use Sentinel (sentinel://…), or name one"
        )
    if (connection.transport_options or {}).get("ack_emulation", True) is False:
        yield Contradiction(
            "broker_transport_options", "with ack_emulation = False a worker that dies loses its messages", "remove it"
        )
