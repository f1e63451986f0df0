"""The configuration of an app is read where Celery's users write it, and refused where it would not be read."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, current_app

from redelivery import Redelivery, redeliver
from redelivery.errors import ConfigurationError


def configured(given: dict[str, Any], **how: Any) -> Celery:
    """An app whose configuration is an object, as in Django, with these attributes."""
    app = Celery("configured", set_as_current=False)
    Redelivery(app)
    app.config_from_object(type("Settings", (), given), **how)
    return app


def test_settings_are_read_in_the_namespace_of_the_app() -> None:
    """With and without Celery's namespace. Other attributes of the object do not matter."""
    policies = {"mode": "observe"}
    for app in (
        configured({"CELERY_REDELIVERY": policies, "REDELIVERY_MODE": "parcels", "REDELIVERY": 5}, namespace="CELERY"),
        configured({"redelivery": policies, "REDELIVERY_MODE": "parcels", "CELERY_REDELIVERY": {}}),
    ):
        assert app.redelivery.settings.mode == "observe"


@pytest.mark.parametrize(
    ("given", "how", "message"),
    [
        ({"CELERY_REDELIVERY_MODE": "observe"}, {"namespace": "CELERY"}, r"redelivery_mode is not read: .* \{'mode': \.\.\.\}"),
        ({"redelivery": {}, "redelivery_queues": {}}, {}, r"redelivery_queues is not read"),
        ({"BROKER_URL": "redis://", "CELERY_REDELIVERY": {"mode": "observe"}}, {}, r"CELERY_REDELIVERY .* namespace='CELERY'"),
    ],
)
def test_settings_that_nobody_would_read_are_refused(given: dict[str, Any], how: dict[str, Any], message: str) -> None:
    """Celery accepts every name: after `CELERY_REDELIVERY_MODE = "observe"` the worker would enforce its policies."""
    with pytest.raises(ConfigurationError, match=message) as refused:
        configured(given, **how).redelivery.settings  # noqa: B018 - reading is what refuses
    assert "\n" not in str(refused.value)


def test_what_is_no_celery_app_is_refused() -> None:
    """For example a Flask app of the same name. Celery's `current_app` is accepted."""
    for other in (None, "shop", object()):
        with pytest.raises(ConfigurationError, match="Redelivery takes a Celery app, not"):
            Redelivery(other)
    Celery("current").set_current()
    assert Redelivery(current_app).app.main == "current"


def test_the_targets_of_a_queue_are_those_of_all_tasks_also_of_later_ones() -> None:
    """Thousands of tasks are evaluated by groups; the result is that of each task by itself."""
    app = Celery("targets", broker="memory://")
    tasks = {"shop.#": {"dead_letter_queue": "shops"}, "shop.odd.*": {"dead_letter_queue": "odd"}, "mail.*": {"max_age": 5}}
    policies = Redelivery(app, {"queues": {"b": {"expiry_queue": "gone"}}, "tasks": tasks}).policies

    def own() -> None:
        """A task."""

    def each(queue: str) -> list[str]:
        made = [policies.policy_for(queue), *(policies.policy_for(queue, task) for task in app.tasks)]
        targets = [target for policy in made for target in (policy.dead_letter_queue_for(queue), policy.expiry_queue_for(queue))]
        return sorted({target for target in targets if target is not None})

    for name in ("plain", "mail.send", "shop.pay", "shop.odd.one"):
        app.task(name=name)(own)
    app.finalize()
    assert {queue: policies.targets_of(queue) for queue in "ab"} == {queue: each(queue) for queue in "ab"}
    assert policies.targets_of("b") == ["DLQ.b", "gone", "odd", "shops"]

    @app.task(name="late")
    @redeliver(dead_letter_queue="late")
    def late() -> None:
        """A task with a queue of its own."""

    assert policies.targets_of("a") == each("a") == ["DLQ.a", "late", "odd", "shops"]
