"""Dead-letter handlers: an ordinary Celery worker consumes a dead-letter queue, and decides about each dead letter.

    @install.dead_letter_handler("orders")          # celery -A shop worker -Q DLQ.orders
    def decide(letter: Letter) -> LetterDecision:
        return letter.redrive() if letter.reason == "worker_lost" else letter.park()

1. If a dead letter arrives on a queue that has a handler, Celery gets a call of the handler in its place (`call_for`). The letter
   itself stays held, unchanged.
2. The pool's child runs the handler as a task, and sends the decision to the main process as `Handled`, an exception that Celery
   neither stores nor reports.
3. `LetterDelivery` carries the decision out as one transition.
4. If a handler fails, or returns something else, the letter is delivered to it again by the policy of the dead-letter queue and the
   handler's name. When the attempts are exhausted, the letter is parked in the dead-letter queue's own dead-letter queue.

Without a handler, a worker that consumes a dead-letter queue runs the tasks in it, each in a new generation (`admission`).
Limits: if a worker dies after the decision and before the transition, the handler is called again.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore
from celery.utils.imports import symbol_by_name
from celery.worker import state
from kombu.serialization import dumps

from redelivery.errors import ConfigurationError, EnvelopeError

from ...child.attempt import Attempt, Dying
from ...logs import log
from ...messages.envelope import HEADER, Envelope, Failed
from ...messages.events import Outcome, Reason
from ...messages.recording import raw_id, recorded_id
from ...messages.steps import opened
from ...policy import task_exceptions
from ...policy.decision import DeadLetter
from ...transitions.homes import Homes
from ...transitions.letter import Letter, LetterDecision
from ...transitions.redrive import redrive
from .held_delivery import Ending, HeldDelivery, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Celery

    from ...messages.events import Event
    from ...runtime import Runtime

PREFIX = "redelivery.dead_letters."
#: Imported by name, because `middleware` must not import `workers`.
ARCHIVE = "redelivery.workers.operations.letters.archive:archive_raw"


class Handled(Ignore):
    """A handler's decision, sent by the pool's child to the worker's main process."""

    def __init__(self, decision: LetterDecision) -> None:
        super().__init__(decision)
        self.decision = decision


def dead_letter_handler(runtime: Runtime, queues: Sequence[str], options: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The decorator `Redelivery.dead_letter_handler`. Raises `ConfigurationError` for a queue that has a handler already."""
    if not queues or not all(isinstance(queue, str) for queue in queues):
        msg = 'dead_letter_handler needs the origin queues whose dead letters it handles: dead_letter_handler("orders")'
        raise ConfigurationError(msg)

    def register(handler: Callable[[Letter], LetterDecision]) -> Callable[[Letter], LetterDecision]:
        name = PREFIX + ".".join(queues)

        def run(letter: str) -> None:
            queue = _held_in(runtime)
            homes = None if queue is None else Homes(runtime.transport, queue)
            raise Handled(_decision_of(runtime.app, handler, Letter.of(base64.b64decode(letter), homes), queue))

        settled = {"acks_late": True, "ignore_result": True, "store_errors_even_if_ignored": False}
        for queue in queues:
            if queue in runtime.letter_handlers:
                msg = f"queue {queue!r} has a dead-letter handler already ({runtime.letter_handlers[queue]}): keep one of the two"
                raise ConfigurationError(msg)
            runtime.letter_handlers[queue] = name
        run.__doc__, run.__module__ = handler.__doc__, handler.__module__
        runtime.app.task(run, **{**options, **settled, "name": name, "shared": False})
        return handler

    return register


def _held_in(runtime: Runtime) -> str | None:
    """The dead-letter queue whose letter is handled here; None if the handler is called directly."""
    task = runtime.app.current_worker_task
    attempt = None if task is None else Attempt.of(task, task.request)
    return None if attempt is None else attempt.facts.queue


def _decision_of(app: Celery, handler: Callable[[Letter], LetterDecision], letter: Letter, held_in: str | None) -> LetterDecision:
    """Call the handler; if it archives, write the archive before the letter is removed. Raises what the handler raises."""
    decision: Any = handler(letter)
    if not isinstance(decision, LetterDecision):
        msg = f"the dead-letter handler returned {decision!r}: return letter.redrive(), .archive(), .discard() or .park()"
        raise task_exceptions.DeadLetter(msg)
    if decision.kind == "archive":
        symbol_by_name(ARCHIVE)(app.redelivery, letter.raw, held_in=held_in, why=decision.detail or "handler")
    return decision


def handlers_of(runtime: Runtime) -> dict[str, str]:
    """Dead-letter queue → the task that handles its letters. Raises `ConfigurationError` if a queue keeps no dead letters."""
    found = {}
    for queue, name in runtime.letter_handlers.items():
        target = runtime.policies.policy_for(queue).dead_letter_queue_for(queue)
        if target is None:
            msg = f"queue {queue!r} has a dead-letter handler, and its policy keeps no dead letters (dead_letter_queue = None)"
            raise ConfigurationError(msg)
        found[target] = name
    return found


def call_for(message: Any, raw: bytes, name: str, app: Celery) -> None:
    """Turn the message of a dead letter into a call of its handler. The worker still holds the letter's own bytes."""
    letter = message.headers
    accepted = app.conf.accept_content or ["json"]
    serializer = "json" if {"json", "application/json"} & set(accepted) else app.conf.task_serializer
    body: Any = ([base64.b64encode(raw).decode()], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
    message.content_type, message.content_encoding, message.body = dumps(body, serializer=serializer)
    own_id = letter.get("id")
    task_id = own_id if isinstance(own_id, str) else raw_id(raw)
    message.headers = {
        "lang": "py",
        "task": name,
        "id": f"letter-{task_id}",
        "root_id": f"letter-{task_id}",
        "parent_id": None,
        "group": None,
        "retries": Envelope.of(letter).handled,
        "eta": None,
        "expires": None,
        "timelimit": [None, None],
        "argsrepr": f"(<letter {task_id}>,)",
        "kwargsrepr": "{}",
        "ignore_result": True,
        HEADER: letter.get(HEADER),
    }
    message.properties = {**message.properties, "correlation_id": None, "reply_to": None}
    message._decoded_cache = None  # noqa: SLF001 - kombu's: forget the decoded old body


class LetterDelivery(HeldDelivery):
    """The delivery of a dead letter to its handler, whose decision moves it and is recorded."""

    __slots__ = ()

    def on_failure(self, request: Any, exc_info: Any, send_failed_event: bool, return_ok: bool) -> None:
        """Carry the handler's decision out; a real failure is handled as a task's."""
        exc = unwrapped(exc_info.exception)
        if not isinstance(exc, Handled):
            super().on_failure(request, exc_info, send_failed_event, return_ok)
            return
        state.task_ready(request)
        if self.has_left:
            return
        decision = exc.decision
        log.info("letter.handled", task_id=self._task_id(request), decision=decision.kind, detail=decision.detail)
        try:
            self._carry_out(request, decision)
        except EnvelopeError as refused:
            self.settle(request, _parked(Reason.INVALID, str(refused)))
        request.send_event("task-succeeded", result=decision.kind, runtime=0.0)

    def _carry_out(self, request: Any, decision: LetterDecision) -> None:
        if decision.kind == "park":
            self.settle(request, _parked(Reason.REJECTED, decision.detail))
        elif decision.kind == "redrive":
            self._send_back(request, decision)
        else:
            outcome = Outcome.PURGED if decision.kind == "archive" else Outcome.DISCARDED
            self.settlement.acknowledge(request, self._event(request, outcome, reason=Reason.OPERATOR))

    def _send_back(self, request: Any, decision: LetterDecision) -> None:
        held, homes = self.held, Homes(self.runtime.transport, self.held.queue)
        changes: dict[str, Any] = {"to": decision.queue, "args": decision.args, "kwargs": decision.kwargs, "task": decision.task}
        facts = {"worker": request.hostname, "attempt": self.envelope.attempt}
        back = redrive(opened(held.raw), held.raw, held.queue, self.envelope, homes, **changes, **facts)
        name = homes.transport.keys.list_name(back.home.queue, back.priority)
        self.settlement.defer(request, name, back.raw, back.event.task_id, back.event, delay_ms=0)

    def _times(self, request: Any) -> dict[str, Any]:  # noqa: ARG002 - as a task's
        """Nothing: a handler's run is not an attempt of the letter's task."""
        return {}

    def settle(self, request: Any, ending: Ending) -> None:
        """Park the letter if its handler ended without a decision."""
        super().settle(request, ending if isinstance(ending, Dying) else _parked(Reason.REJECTED, f"its handler was {ending}"))

    def redeliver(self, request: Any, delay_ms: int, failed: Failed, **how: Any) -> None:
        """Deliver the letter to the handler again."""
        attempt, task_id = self.facts.attempt, self._task_id(request)
        log.warning("letter.handler_failed", task_id=task_id, handler=request.name, attempt=attempt, error=failed.type)
        super().redeliver(request, delay_ms, failed, **how)

    def headers(self, request: Any) -> dict[str, Any]:  # noqa: ARG002 - as a task's
        """The letter's headers: its task is recorded, not its handler."""
        headers: dict[str, Any] = opened(self.held.raw)["headers"]
        return headers

    def _event(self, request: Any, outcome: Outcome, **facts: Any) -> Event:
        # Delivery 0: an operator or a handler ended the message, after all deliveries of the task.
        return super()._event(request, outcome, **{"attempt": self.envelope.attempt, "delivery": 0, **facts})

    def _task_id(self, request: Any) -> str:
        return recorded_id(self.headers(request).get("id"), self.held)


def _parked(reason: Reason, detail: str) -> Dying:
    return Dying(DeadLetter(reason, detail), None)
