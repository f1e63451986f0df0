"""The examination: asks the broker and the workers in parallel, for a bounded time, and passes the answers to every check.

Each question has its own thread. If a question is refused, or not answered in time, it becomes a `NotKnown`, and the checks that
need it yield nothing. Nothing is changed, with two exceptions on RabbitMQ: one empty message is published to an exclusive queue,
and the first message of the outcome log is marked as delivered before.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from redelivery.middleware.brokers import kind_of
from redelivery.middleware.brokers.errors import EXPECTED_ERRORS
from redelivery.middleware.worker.startup.checks import dead_letter_queue_faults

from ...brokers.broker import broker_of
from ...ports import NotKnown
from ..letters import dead_letters
from .dead_letters import check_queues, check_unread
from .finding import Finding
from .fleet import ask
from .outcome_log import check_bytes, check_export
from .queues import check_consumers, check_dispatcher, check_taken
from .seen import Queues, Seen
from .server import check_endings, check_memory, check_persistence, check_replicas
from .settings import check_celery, check_patterns, check_refused, check_results, check_retention, check_task_rows
from .tasks import check_acknowledgement, check_strategies
from .workers import check_clocks, check_mixture, check_versions, check_visibility

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from redelivery.middleware.runtime import Runtime

    from ...ports import Checkup

Answered = TypeVar("Answered")

#: Seconds between two reads of the leases; a living worker renews its lease more often.
STILL = 2.5
#: All checks, the dangers first: pure functions of the answers. A check yields nothing if the answer that it needs did not come.
CHECKS: tuple[Callable[[Seen], Iterator[Finding | NotKnown]], ...] = (
    check_refused,
    check_memory,
    check_persistence,
    check_replicas,
    check_endings,
    check_queues,
    check_taken,
    check_consumers,
    check_dispatcher,
    check_visibility,
    check_mixture,
    check_versions,
    check_clocks,
    check_unread,
    check_export,
    check_bytes,
    check_acknowledgement,
    check_strategies,
    check_patterns,
    check_task_rows,
    check_retention,
    check_results,
    check_celery,
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, the dangers first, and what is not known. `workers` is how many answered; None if they could not be asked."""

    findings: tuple[Finding, ...]
    not_known: tuple[NotKnown, ...]
    workers: int | None


def examine(runtime: Runtime, app: str, seconds: float) -> Diagnosis:
    """Run all checks, for at most `seconds`. `app` is the value of `-A`, for the commands in the fixes.

    Raises `ConfigurationError` if the settings are invalid, and the errors of the broker's driver.
    """
    runtime.app.finalize(auto=True)
    seen, missing = _seen(runtime, app, seconds)
    results = [each for check in CHECKS for each in check(seen)]
    findings = sorted((each for each in results if isinstance(each, Finding)), key=lambda each: each.severity != "danger")
    not_known = (*missing, *(each for each in results if isinstance(each, NotKnown)))
    return Diagnosis(tuple(findings), not_known, None if seen.fleet is None else len(seen.fleet.workers))


def _seen(runtime: Runtime, app: str, seconds: float) -> tuple[Seen, list[NotKnown]]:
    broker, kind = broker_of(runtime.transport), kind_of(runtime.app)
    checkup = broker.checkup
    queues = list(runtime.app.amqp.queues.consume_from)
    letters = dead_letters.known(runtime)
    now_ms = runtime.transport.now_ms
    names = [name for name in runtime.app.amqp.queues if name not in letters]
    targets = {*letters, *(target for queue in queues for target in runtime.policies.targets_of(queue))}
    url = runtime.settings.management_url
    asked = _Questions(seconds)
    condition = asked.ask("the broker's own state", lambda: checkup.condition(queues, sorted(targets), url))
    waiting = asked.ask("the queues", lambda: _queues(runtime, checkup, names, letters))
    summaries = asked.ask("the dead letters", lambda: dead_letters.summaries(runtime))
    faults = asked.ask("the dead-letter queues", lambda: list(dead_letter_queue_faults(runtime)))
    log = asked.ask("the outcome log", checkup.log_state)
    fleet = asked.ask("the workers", lambda: ask(runtime.app, now_ms))
    leases = asked.ask("the leases", lambda: _count_renewed(checkup))
    clocks = asked.ask("the producers' clocks", checkup.wrong_clocks)
    readers = asked.ask("who reads the dead letters", lambda: checkup.consumers(letters))
    answered = fleet()
    ours = 0 if answered is None else len(answered.ours)
    on_queues = {} if answered is None else {name: len(answered.consumers_of(name)) for name in letters}
    return (
        Seen(
            runtime=runtime,
            app=app,
            kind=kind,
            now_ms=now_ms(),
            condition=condition(),
            queues=waiting(),
            letters=summaries(),
            letter_faults=faults(),
            log=log(),
            fleet=answered,
            silent=max((leases() or 0) - ours, 0),
            wrong_clocks=clocks(),
            letter_readers=on_queues | dict(readers() or {}),
        ),
        asked.missing,
    )


def _queues(runtime: Runtime, checkup: Checkup, names: list[str], letters: Mapping[str, str]) -> Queues:
    gauges = broker_of(runtime.transport).gauges
    return Queues.of(list(gauges.sample(names, letters, len)), checkup.consumers(names))


def _count_renewed(checkup: Checkup) -> int:
    """Return how many leases are renewed. Takes `STILL` seconds."""
    before = checkup.leases()
    if not before:
        return 0
    time.sleep(STILL)
    return sum(before.get(token) != counter for token, counter in checkup.leases().items())


class _Questions:
    """Questions that are asked in parallel, with one deadline for all answers."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self.missing: list[NotKnown] = []

    def ask(self, what: str, question: Callable[[], Answered]) -> Callable[[], Answered | None]:
        """Ask a question. The returned function waits for the answer; None if it does not come in time (see `missing`)."""
        answers: list[Answered] = []
        failures: list[Exception] = []

        def run() -> None:
            try:
                answers.append(question())
            except Exception as exc:  # noqa: BLE001 - `answer` reports it or raises it again
                failures.append(exc)

        thread = threading.Thread(target=run, name="redelivery-doctor", daemon=True)
        thread.start()

        def answer() -> Answered | None:
            thread.join(max(self._until - time.monotonic(), 0))
            if answers:
                return answers[0]
            self._explain(what, failures)
            return None

        return answer

    def _explain(self, what: str, failures: list[Any]) -> None:
        if not failures:
            why = f"the broker did not answer within {self._seconds:g} s"
            self.missing.append(NotKnown(what, why, "run doctor again, with a longer --timeout"))
            return
        if not isinstance(failures[0], EXPECTED_ERRORS):
            raise failures[0]
        self.missing.append(
            NotKnown(what, f"{type(failures[0]).__name__}: {failures[0]}", "see the broker's log, or its user's rights")
        )
