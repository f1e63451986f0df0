"""Declares redelivery's queues and exchanges on a RabbitMQ broker.

Everything is durable, and may be declared again. A queue that exists with other arguments is used as it is. A refused declaration
closes its channel, so each declaration that may be refused has its own channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError, NotFound, PreconditionFailed

from redelivery.settings.general import GeneralSettings

from ...logs import log
from .names import BITS

if TYPE_CHECKING:
    from celery import Celery

    from .names import AmqpNames

QUEUE_TYPE = "x-queue-type"
CLASSIC, STREAM = "classic", "stream"
#: In a quorum queue, a look at a message counts as a delivery, and RabbitMQ 4 drops a message after 20 deliveries. Versions before
#: 4 refuse -1 (no limit).
DELIVERY_LIMIT, NO_LIMIT = "x-delivery-limit", 2**31 - 1
#: How long a recorded start is kept if it is not deleted: a week, in milliseconds.
KEPT_MS = 7 * 24 * 3600 * 1000
#: The journal's bytes (about a million moves), in four files; a file is deleted when all its entries are older than this age.
JOURNAL_BYTES, JOURNAL_AGE = 16 * 1024 * 1024, "1h"
#: The audit's bytes (about ten thousand records), in four files.
AUDIT_BYTES = 8 * 1024 * 1024


def max_log_bytes(owner: Any) -> int:
    """The most bytes of the outcome log, by the settings of this app or connection, or by default."""
    runtime = getattr(owner, "redelivery", None)
    return int((GeneralSettings() if runtime is None else runtime.settings).outcome_log_max_bytes)


def declare_outcomes(connection: Any, names: AmqpNames, max_bytes: int) -> bool:
    """Declare the outcome log: a durable queue, bound to an exchange to which other programs may bind queues, too.

    Returns whether it was missing. Beyond `max_bytes` the oldest events are dropped; the numbers in later ids show the gap. An
    existing queue keeps its bound.
    """
    is_missing = not has_queue(connection, names.outcomes)
    if is_missing:
        with connection.channel() as channel:
            channel.queue_declare(names.outcomes, durable=True, auto_delete=False, arguments={"x-max-length-bytes": max_bytes})
    with connection.channel() as channel:
        channel.queue_bind(names.outcomes, names.outcomes_exchange, names.outcomes)
    return is_missing


def declare_delays(connection: Any, names: AmqpNames) -> bool:
    """Declare the delay store, as kombu declares its own, if any part is missing; return whether one was.

    It is declared from the last exchange on; if the process dies, it is declared again. A message enters at the highest bit of its
    delay. At each level it waits if the bit is 1, and passes if it is 0. The queues have no delivery limit: at the limit, a level
    would pass the message on too early.
    """
    if _exists(connection, lambda channel: _look_at_delays(channel, names)):
        return False
    with connection.channel() as channel:
        behind = names.delivery_exchange
        channel.exchange_declare(behind, "topic", durable=True, auto_delete=False)
        for bit in range(BITS):
            level, earlier = names.level(bit), "*." * (BITS - 1 - bit)
            arguments = {
                QUEUE_TYPE: "quorum",
                "x-overflow": "reject-publish",
                "x-message-ttl": 2**bit * 1000,
                "x-dead-letter-exchange": behind,
                "x-dead-letter-strategy": "at-least-once",
                DELIVERY_LIMIT: NO_LIMIT,
            }
            channel.queue_declare(level, durable=True, auto_delete=False, arguments=arguments)
            channel.exchange_declare(level, "topic", durable=True, auto_delete=False)
            channel.queue_bind(level, level, f"{earlier}1.#")
            channel.exchange_bind(behind, level, f"{earlier}0.#")
            behind = level
        channel.exchange_declare(names.delays_declared, "direct", durable=True, auto_delete=False)
    log.info("delay_store.declared", prefix=names.delay_prefix)
    return True


def _look_at_delays(channel: Any, names: AmqpNames) -> None:
    """Raise `NotFound` if an exchange or queue of the delay store is missing."""
    levels = [names.level(bit) for bit in range(BITS)]
    for exchange in (names.delays_declared, names.delivery_exchange, *levels):
        channel.exchange_declare(exchange, "direct", passive=True)
    for queue in levels:
        channel.queue_declare(queue, passive=True)


def bind_to_delays(channel: Any, queue: str, names: AmqpNames) -> None:
    """Bind a queue to the delay store, to receive the messages that have waited for it."""
    channel.queue_bind(queue, names.delivery_exchange, names.binding_of(queue))


def declare_letters(connection: Any, name: str, queue_type: str) -> None:
    """Declare a dead-letter queue of this type, unless a queue of this name exists."""
    arguments = {} if queue_type == CLASSIC else {QUEUE_TYPE: queue_type, DELIVERY_LIMIT: NO_LIMIT}
    with connection.channel() as channel:
        try:
            channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        except PreconditionFailed:
            log.debug("dead_letter_queue.kept", dead_letter_queue=name, why="it exists with other arguments")


def declare_journal(connection: Any, name: str) -> bool:
    """Declare the journal of moves (`journal`), a stream; return whether it exists. If not, the connection may be closed."""
    try:
        _declare_stream(connection, name, JOURNAL_BYTES, {"x-max-age": JOURNAL_AGE})
    except (AMQPError, OSError) as exc:
        why = "if a worker dies, messages that it has moved may be delivered once more"
        log.warning("journal.missing", error=f"{type(exc).__name__}: {exc}", why=why)
        return False
    return True


def declare_audit(connection: Any, name: str) -> bool:
    """Declare the audit, a stream of what operators did; return whether it exists. If not, the connection may be closed."""
    try:
        _declare_stream(connection, name, AUDIT_BYTES, {})
    except (AMQPError, OSError) as exc:
        why = "operators' actions are recorded only in the events of the messages"
        log.warning("audit.missing", error=f"{type(exc).__name__}: {exc}", why=why)
        return False
    return True


def _declare_stream(connection: Any, name: str, most: int, bounds: dict[str, Any]) -> None:
    """Declare a stream that keeps `most` bytes in four files."""
    arguments = {QUEUE_TYPE: STREAM, "x-max-length-bytes": most, "x-stream-max-segment-size-bytes": most // 4, **bounds}
    with connection.channel() as channel:
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)


def declare_start(channel: Any, name: str) -> None:
    """Declare a recorded start (`start_markers`): a classic queue that stays empty."""
    channel.queue_declare(name, durable=True, auto_delete=False, arguments={QUEUE_TYPE: CLASSIC, "x-expires": KEPT_MS})


def has_queue(connection: Any, name: str) -> bool:
    """Whether a queue of this name exists."""
    return _exists(connection, lambda channel: channel.queue_declare(name, passive=True))


def has_exchange(connection: Any, name: str) -> bool:
    """Whether an exchange of this name exists."""
    return _exists(connection, lambda channel: channel.exchange_declare(name, "direct", passive=True))


def queue_type_of(app: Celery, queue: str) -> str:
    """The type that the app declares this queue with; classic by default."""
    queues = app.amqp.queues
    known = queues[queue] if queue in queues else None  # noqa: SIM401 - `queues[...]` makes what is missing
    said = (getattr(known, "queue_arguments", None) or {}).get(QUEUE_TYPE)
    default = getattr(app.conf, "task_default_queue_type", None) if known is None else None
    return str(said or default or CLASSIC)


def _exists(connection: Any, look: Any) -> bool:
    with connection.channel() as channel:
        try:
            look(channel)
        except NotFound:
            return False
    return True
