"""`Redelivery(app)`: the two lines that install everything.

It does not configure or finalize the app. It adds bootsteps, and gives the app's later connections a transport class. The settings
are read when they are first needed, the tasks when a worker starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from celery import Celery

from redelivery.errors import ConfigurationError

from .brokers import kind_of, transport_of
from .brokers.batches import PublishingBlock, install_batches
from .brokers.broker_url import check_before_start
from .brokers.connections import install_connections
from .policy.resolver import Resolver
from .runtime import Runtime
from .transitions.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from redelivery.settings import RedeliveryPolicy

    from .runtime import Telemetry
    from .transitions.letter import Letter, LetterDecision

    Handler = TypeVar("Handler", bound=Callable[[Letter], LetterDecision])


class Redelivery(Runtime):
    """Retries, dead letters, delays and outcomes for every task of a Celery app.

    `settings` replaces `app.conf.redelivery`; both are mappings as `redelivery.settings` describes. `mode` overrides their mode:
    `"observe"` records outcomes and the decisions that would be taken, and changes nothing. Raises `ConfigurationError` if `app` is
    not a Celery app, or has a `Redelivery` already.
    """

    def __init__(
        self,
        app: Celery,
        settings: Mapping[str, Any] | None = None,
        *,
        mode: Literal["enforce", "observe"] | None = None,
    ) -> None:
        if not isinstance(app, Celery):
            msg = f"Redelivery takes a Celery app, not {app!r}"
            raise ConfigurationError(msg)
        if getattr(app, "redelivery", None) is not None:
            msg = f"Redelivery is installed on {app!r} already: keep one of the two calls"
            raise ConfigurationError(msg)
        outbox = Outbox(self._is_transient, self.make_room)
        super().__init__(app, Resolver(app, settings, mode), outbox, transport_of, _telemetry_of)
        app.redelivery = self
        app.steps["consumer"].add("redelivery.middleware.worker.bootstep:Ingress")
        app.steps["consumer"].add("redelivery.workers.duties.bootstep:Duties")
        app.steps["consumer"].add("redelivery.workers.duties.remote_control:RemoteControl")
        app.steps["consumer"].add("redelivery.workers.duties.served_metrics:ServedMetrics")
        install_connections(app)
        install_batches(app)
        check_before_start(app)

    def _is_transient(self, exc: BaseException) -> bool:
        return self.transport.is_transient(exc)

    def policy_for(self, queue: str, task: str | None = None) -> RedeliveryPolicy:
        """The policy for this task on this queue."""
        return self.policies.policy_for(queue, task)

    def publishing(self) -> PublishingBlock:
        """A block whose code publishes in batches: `with app.redelivery.publishing(): ...`; its `flush()` publishes at once.

        `delay()` and `apply_async()` return as always. A batch is sent at the end of the block (also if an exception ends it), at
        500 messages, at a mebibyte, or when a message comes a second after the oldest. If the process dies before that, the batch
        is neither published nor recorded. Do not wait for a result in the block before `flush()`.
        """
        return PublishingBlock(self.app)

    def dead_letter_handler(self, *queues: str, **options: Any) -> Callable[[Handler], Handler]:
        """Decorate the function that decides about the dead letters of these origin queues, in a worker that consumes their DLQ.

        It gets a `redelivery.Letter`, and returns the result of the letter's `redrive`, `archive`, `discard` or `park`.
        `options` are a Celery task's. Raises `ConfigurationError` if a queue has a handler already.
        """
        from .worker.deliveries.letter_handler import dead_letter_handler  # noqa: PLC0415 - few apps have one

        return dead_letter_handler(self, queues, options)


def _telemetry_of(runtime: Runtime) -> Telemetry:
    """The object that reports to OpenTelemetry. Raises `ConfigurationError` if OpenTelemetry is not installed."""
    try:
        from .telemetry.spans import Spans  # noqa: PLC0415 - OpenTelemetry is an extra
    except ImportError as exc:
        msg = f"the setting opentelemetry needs a module that is not installed ({exc.name}): install redelivery[otel], or remove it"
        raise ConfigurationError(msg) from exc
    kind = kind_of(runtime.app)
    return Spans(runtime, "rabbitmq" if kind == "amqp" else kind)
