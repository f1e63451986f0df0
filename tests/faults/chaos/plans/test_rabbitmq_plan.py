"""The plan of the chaos run on RabbitMQ names every call of the product that changes that broker.

The calls are looked for in the product's source, by their names in py-amqp and kombu; a call that only asks (`passive`) is no
change.
"""

from __future__ import annotations

import ast

from tests.faults.chaos.plans.page import RABBITMQ, read_kills
from tests.faults.chaos.plans.test_plan import calls
from tests.faults.chaos.rabbit.account import NAMED
from tests.faults.chaos.rabbit.plan import BOUNDARIES
from tests.support.running import ROOT

#: AMQP's methods that change a broker, or who has a message, as py-amqp and kombu call them; and our own ways around both.
CHANGES = {
    *("basic_publish", "basic_publish_confirm", "basic_consume", "basic_get", "basic_cancel", "basic_recover", "basic_qos"),
    *("basic_ack", "basic_ack_multiple", "basic_reject", "basic_nack", "send_method", "frames", "_write_frame"),
    *("queue_declare", "queue_bind", "queue_unbind", "queue_delete", "queue_purge"),
    *("exchange_declare", "exchange_bind", "exchange_unbind", "exchange_delete"),
    *("tx_select", "tx_commit", "tx_rollback"),
}
#: The functions that call these methods, and the steps to which the calls belong.
CALLS = {
    "middleware/brokers/rabbitmq/batch.py:_add": "publish_batch",
    "middleware/brokers/rabbitmq/channel.py:acknowledge": "acknowledge",
    "middleware/brokers/rabbitmq/channel.py:await_acknowledged": "rest",
    "middleware/brokers/rabbitmq/channel.py:basic_publish_confirm": "publish",
    "middleware/brokers/rabbitmq/publisher.py:_publish": "confirm",
    "middleware/brokers/rabbitmq/topology.py:bind_to_delays": "declare",
    "middleware/brokers/rabbitmq/topology.py:declare_delays": "declare",
    "middleware/brokers/rabbitmq/topology.py:_declare_stream": "declare",
    "middleware/brokers/rabbitmq/topology.py:declare_letters": "keep",
    "middleware/brokers/rabbitmq/topology.py:declare_outcomes": "declare",
    "middleware/brokers/rabbitmq/topology.py:declare_start": "start",
    "middleware/brokers/rabbitmq/peek.py:_give_back": "give_back",
    "middleware/brokers/rabbitmq/peek.py:_next": "look",
    "middleware/brokers/rabbitmq/peek.py:take": "acknowledge",
    "workers/brokers/rabbitmq/outcome_log.py:__init__": "listen",
    "workers/brokers/rabbitmq/outcome_log.py:_lock": "lock",
}
#: Celery's own calls through our channels, and calls that only listen to the log: no message is in hand there.
NO_STEP = {
    "middleware/brokers/rabbitmq/channel.py:basic_ack": "Celery's, where a message is not ours to end",
    "middleware/brokers/rabbitmq/channel.py:basic_reject": "as before",
    "middleware/brokers/rabbitmq/channel.py:basic_publish": "without confirms: a producer that asked for none, and knows nothing",
    "middleware/brokers/rabbitmq/journal/reader.py:__init__": "reading a stream takes nothing out of it",
    "middleware/brokers/rabbitmq/journal/reader.py:_note": "as before",
    "middleware/brokers/rabbitmq/journal/reader.py:catch_up": "a marker, which says nothing of any message",
    "middleware/brokers/rabbitmq/journal/letter_look.py:_alone": "a queue of one's own, that goes with its connection",
    "middleware/brokers/rabbitmq/journal/letter_look.py:_locked": "as before",
    "middleware/brokers/rabbitmq/consuming/start_markers.py:forget": "nobody waits for it, and what is left behind expires",
    "middleware/brokers/rabbitmq/consuming/window.py:basic_consume": "Celery's: what it brings is `receive`",
    "middleware/brokers/rabbitmq/consuming/window.py:basic_cancel": "Celery's: the broker keeps what the consumer was handed",
    "middleware/brokers/rabbitmq/consuming/window.py:begin_second": "what it brings is `receive`; a consumer goes with its channel",
    "middleware/brokers/rabbitmq/consuming/window.py:end_second": "the broker keeps what the consumer was handed",
    "middleware/brokers/rabbitmq/consuming/window.py:basic_qos": "the prefetch window goes with its channel",
    "middleware/brokers/rabbitmq/consuming/window.py:widen": "as before",
    "middleware/brokers/rabbitmq/consuming/window.py:_set_for_each": "as before",
    "workers/brokers/rabbitmq/outcome_log.py:follow": "a queue of one's own, that goes with its connection",
    "workers/brokers/rabbitmq/outcome_log.py:new_events": "as before",
    "middleware/brokers/redis/receiving/channel.py:basic_consume": "kombu's on Redis",
    "middleware/brokers/redis/receiving/channel.py:basic_cancel": "as before",
    "middleware/brokers/redis/publishing/producer.py:send_together": "as before",
    "middleware/brokers/redis/publishing/producer.py:_publish_each": "as before",
    "middleware/brokers/kombu/generic.py:_publish": "other brokers'",
    "workers/brokers/rabbitmq/watching.py:begin": "a queue of one's own, that goes with its connection",
    "workers/brokers/rabbitmq/audit.py:record": "a record of the audit, which is no message's outcome",
    "workers/brokers/rabbitmq/audit.py:_read": "reading a stream takes nothing out of it",
    "workers/brokers/rabbitmq/audit.py:_catch_up": "the reader's own prefetch window, which goes with its channel",
    "workers/brokers/rabbitmq/checkup.py:_alarm": "a queue of its own, that goes with its connection",
    "workers/brokers/rabbitmq/delay_store.py:_require_publications": "a question: it reaches no queue",
}


def steps() -> set[str]:
    """The steps that the plan kills at."""
    return {each.partition(".")[0] for boundaries in BOUNDARIES.values() for each in boundaries}


def test_every_call_that_changes_a_rabbitmq_is_a_boundary() -> None:
    """A new call without a step fails here, and so does a step whose call is gone."""
    found = {where for where, name, call in calls() if name in CHANGES and not _only_asks(call)}
    assert found == CALLS.keys() | NO_STEP.keys()
    assert set(CALLS.values()) <= steps()


def test_the_page_says_of_each_word_that_the_books_may_use_what_it_means_there() -> None:
    """A verdict that the run allows but the page does not explain would hide a fault."""
    page = (ROOT / "docs" / "chaos.md").read_text("utf-8")
    assert [word for word in NAMED if f"`{word}`" not in page] == []


def _only_asks(call: ast.Call) -> bool:
    return any(
        word.arg == "passive" and isinstance(word.value, ast.Constant) and word.value.value is True for word in call.keywords
    )


def test_the_page_has_a_run_of_five_hundred_kills_with_every_boundary_hit() -> None:
    """Each boundary is hit at least five times, with a message in hand."""
    kills = read_kills((ROOT / "docs" / "chaos.md").read_text("utf-8"), RABBITMQ)
    names = {f"{role}:{each}" for role, boundaries in BOUNDARIES.items() for each in boundaries}
    assert {name for name in names if kills.get(name, 0) < 5} == set()
    assert sum(kills.values()) >= 500
