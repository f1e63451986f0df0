"""Dead-letter handlers: an ordinary Celery worker that consumes a dead-letter queue, and decides about each letter.

    @install.dead_letter_handler("orders")          # celery -A shop worker -Q DLQ.orders
    def decide(letter: Letter) -> LetterDecision:
        return letter.redrive() if letter.reason == "worker_lost" else letter.park()

1. Ingress meets a letter on a queue that has a handler, and hands Celery a call of the handler in its place (`call_for`): the
   letter itself stays as it is held, under its tag.
2. The pool's child runs the handler as a task, with the letter as its argument. Its decision travels to the worker's main process
   as `Handled`, an exception that Celery neither stores nor reports.
3. `LetterRequest` carries the decision out as one transition: *taken out of the queue + moved + recorded*.
4. A handler that fails is delivered again by the policy of the dead-letter queue and of the handler's own name, and when that is
   exhausted, the letter is parked in the dead-letter queue's own dead-letter queue. None of this is a step of the task's life: that
   has ended, and only a decision closes it or opens the next one.

Without a handler, a worker that consumes a dead-letter queue runs the tasks in it, each in a new generation.
Refuses, as a failure of the handler: anything that is no decision. What a letter says, and what can be decided, is in `letter`.
Limits: a worker that dies after the decision and before the transition has the handler asked again.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore
from celery.utils.imports import symbol_by_name
from celery.worker import state
from kombu.serialization import dumps

from redelivery.errors import ConfigurationError, EnvelopeError

from ..child.attempt import CONTEXT
from ..logs import log
from ..messages.body import edited, without_chord
from ..messages.envelope import count
from ..messages.events import Outcome, Reason
from ..messages.recording import about, raw_id
from ..messages.steps import HEADER, Envelope, Failed, opened, redriven, sealed
from ..policy.task_exceptions import DeadLetter
from ..transitions.homes import Homes
from ..transitions.letter import Letter, LetterDecision
from .deciding import Ending
from .request import Egress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Celery

    from ..runtime import Runtime

__all__ = ["Handled", "LetterRequest", "call_for", "dead_letter_handler", "handlers_of"]

PREFIX = "redelivery.dead_letters."
#: By name: this room does not import that one.
ARCHIVE = "redelivery.workers.operations.letters.archive:archive_raw"


class Handled(Ignore):
    """A handler's decision, on its way from the pool's child to the worker's main process."""

    def __init__(self, decision: LetterDecision) -> None:
        super().__init__(decision)
        self.decision = decision


def dead_letter_handler(runtime: Runtime, queues: Sequence[str], options: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The decorator `Redelivery.dead_letter_handler`. Raises `ConfigurationError` for a queue that has a handler already."""
    if not queues or callable(queues[0]):
        msg = 'dead_letter_handler needs the origin queues whose dead letters it handles: dead_letter_handler("orders")'
        raise ConfigurationError(msg)

    def register(handler: Callable[[Letter], LetterDecision]) -> Callable[[Letter], LetterDecision]:
        name = PREFIX + ".".join(queues)

        def run(letter: str) -> None:
            queue = _held_in(runtime)
            homes = None if queue is None else Homes(runtime.transport, queue)
            raise Handled(_decision_of(runtime.app, handler, Letter.of(base64.b64decode(letter), homes), queue))

        settled = {"acks_late": True, "ignore_result": True, "store_errors_even_if_ignored": False, "Request": LetterRequest}
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
    """The dead-letter queue whose letter is handled here; None where no worker delivers it (a handler that is called)."""
    task = runtime.app.current_worker_task
    context = None if task is None else task.request.get(CONTEXT)
    return None if context is None else str(context["queue"])


def _decision_of(app: Celery, handler: Callable[[Letter], LetterDecision], letter: Letter, held_in: str | None) -> LetterDecision:
    """Ask the handler; an archive is written here, before anybody takes the letter away. Raises whatever the handler does."""
    decision: Any = handler(letter)
    if not isinstance(decision, LetterDecision):
        msg = f"the dead-letter handler returned {decision!r}: return letter.redrive(), .archive(), .discard() or .park()"
        raise DeadLetter(msg)
    if decision.kind == "archive":
        symbol_by_name(ARCHIVE)(app.redelivery, letter.raw, held_in=held_in, why=decision.detail or "handler")
    return decision


def handlers_of(runtime: Runtime) -> dict[str, str]:
    """Dead-letter queue → the task that handles its letters. Raises `ConfigurationError` where a queue keeps no letters."""
    found = {}
    for queue, name in runtime.letter_handlers.items():
        target = runtime.policies.policy_for(queue).dead_letter_queue_for(queue)
        if target is None:
            msg = f"queue {queue!r} has a dead-letter handler, and its policy keeps no dead letters (dead_letter_queue = None)"
            raise ConfigurationError(msg)
        found[target] = name
    return found


def call_for(message: Any, raw: bytes, name: str, app: Celery) -> None:
    """Make of a letter that has come a call of its handler, for Celery; what is held stays the letter."""
    letter = message.headers
    accepted = app.conf.accept_content or ["json"]
    serializer = "json" if {"json", "application/json"} & set(accepted) else app.conf.task_serializer
    body: Any = ([base64.b64encode(raw).decode()], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
    message.content_type, message.content_encoding, message.body = dumps(body, serializer=serializer)
    said = letter.get("id")
    task_id = said if isinstance(said, str) else raw_id(raw)
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
    message._decoded_cache = None  # noqa: SLF001 - kombu's own: it has not been looked at, and must not answer for the other body


class LetterRequest(Egress):
    """The delivery of a letter to its handler: it leaves by the handler's decision, and no step of it is recorded but that one."""

    @property
    def attempt(self) -> int:
        """The handler's, from 1."""
        return self._envelope.handled + 1

    def _context_of(self, runtime: Runtime) -> dict[str, Any]:
        context = super()._context_of(runtime)
        held = self._held
        assert held is not None  # noqa: S101 - the caller has looked
        died = self._envelope.deaths[0].get("last") if self._envelope.deaths else None
        since = died if isinstance(died, int) else held.seen_ms
        return {**context, "first_seen_ms": since, "age": max(held.seen_ms - since, 0) / 1000, "waited": 0.0, "eligible": True}

    @property
    def _eligible(self) -> bool:
        return True  # it was kept already

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """The handler has spoken, or failed."""
        exc = getattr(exc_info.exception, "exc", exc_info.exception)
        if not isinstance(exc, Handled) or self._held is None:
            super().on_failure(exc_info, send_failed_event, return_ok)
            return
        state.task_ready(self)
        if self._left:
            return
        decision = exc.decision
        log.info("letter.handled", task_id=self._about(Outcome.PURGED).task_id, decision=decision.kind, detail=decision.detail)
        try:
            self._carry_decision(decision)
        except EnvelopeError as refused:
            self._leave(self._parking(Reason.INVALID, str(refused)))
        self.send_event("task-succeeded", result=decision.kind, runtime=0.0)

    def _carry_decision(self, decision: LetterDecision) -> None:
        if decision.kind == "park":
            self._leave(self._parking(Reason.REJECTED, decision.detail))
            return
        if decision.kind == "redrive":
            self._send_back(decision)
            return
        self._left = True
        transport, tag = self._runtime.transport, self._tag
        event = self._about(Outcome.PURGED if decision.kind == "archive" else Outcome.DISCARDED, reason=Reason.OPERATOR)
        self._carry_out(lambda: transport.acknowledge(tag, event))

    def _send_back(self, decision: LetterDecision) -> None:
        held = self._held
        assert held is not None  # noqa: S101 - the callers have looked
        message = edited(opened(held.raw), args=decision.args, kwargs=decision.kwargs, task=decision.task)
        transport, tag, envelope = self._runtime.transport, self._tag, self._envelope
        homes = Homes(transport, held.queue)
        home = homes.of(envelope) if decision.queue is None else homes.to(decision.queue)
        again = sealed(redriven(without_chord(message)[0], home.address))
        list_name = transport.keys.list_name(home.queue, count(message["properties"].get("priority")))
        event = self._about(Outcome.REDRIVEN, generation=envelope.generation + 1)
        self._left = True
        self._carry_out(
            lambda: transport.defer(tag, list_name, again, task_id=event.task_id, event=event, delay_ms=0),
        )

    def _leave(self, ending: Ending) -> None:
        """A letter never ends because its handler did: whatever is no decision parks it."""
        if ending.outcome not in {Outcome.DEAD_LETTERED, Outcome.DISCARDED}:
            ending = self._parking(Reason.REJECTED, f"its handler was {ending.outcome}")
        super()._leave(ending)

    def _parking(self, reason: Reason, detail: str) -> Ending:
        return Ending(Outcome.DEAD_LETTERED, reason, None, keep=True, detail=detail)

    def _redeliver(self, delay_ms: int, failed: Failed, *, crash: bool = False, **more: Any) -> None:  # noqa: ARG002 - as Egress's
        self._left = True
        held = self._held
        assert held is not None  # noqa: S101 - the callers have looked
        raw = self._again(self._runtime.owner.now_ms(), delay_ms, failed, crash=crash)
        transport, tag, task_id = self._runtime.transport, self._tag, self._about(Outcome.DEFERRED).task_id
        log.warning("letter.handler_failed", task_id=task_id, handler=self.name, attempt=self.attempt, error=failed.type)
        pace = self._runtime.policies.pace_of(held.queue)
        self._carry_out(
            lambda: transport.defer(tag, held.list_name, raw, task_id=task_id, event=None, delay_ms=delay_ms, pace=pace),
        )

    def _event(self, outcome: Outcome, reason: Reason | None, failed: Failed | None = None, delay_ms: int | None = None) -> Any:
        """The event is the letter's, not the handler's."""
        facts = {} if failed is None else {"exception": failed.type, "fingerprint": failed.fingerprint}
        return self._about(outcome, reason="" if reason is None else reason, delay_ms=delay_ms, **facts)

    def _about(self, outcome: Outcome, **facts: Any) -> Any:
        held = self._held
        assert held is not None  # noqa: S101 - the callers have looked
        headers, attempts = opened(held.raw)["headers"], self._envelope.attempt
        # It comes after all deliveries of the task: an end that names none is an operator's, or a handler's.
        return replace(about(headers, held, outcome, worker=str(self._hostname)), **{"attempt": attempts, "delivery": 0, **facts})
