"""The configuration of an app is read where Celery's users write it, and refused where it would not be read."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, current_app

from redelivery import Redelivery
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
    ("given", "how", "told"),
    [
        ({"CELERY_REDELIVERY_MODE": "observe"}, {"namespace": "CELERY"}, r"redelivery_mode is not read: .* \{'mode': \.\.\.\}"),
        ({"redelivery": {}, "redelivery_queues": {}}, {}, r"redelivery_queues is not read"),
        ({"BROKER_URL": "redis://", "CELERY_REDELIVERY": {"mode": "observe"}}, {}, r"CELERY_REDELIVERY .* namespace='CELERY'"),
    ],
)
def test_settings_that_nobody_would_read_are_refused(given: dict[str, Any], how: dict[str, Any], told: str) -> None:
    """Celery accepts every name: after `CELERY_REDELIVERY_MODE = "observe"` the worker would enforce its policies."""
    with pytest.raises(ConfigurationError, match=told) as refused:
        configured(given, **how).redelivery.settings  # noqa: B018 - reading is what refuses
    assert "\n" not in str(refused.value)


def test_what_is_no_celery_app_is_refused() -> None:
    """For example a Flask app of the same name. Celery's `current_app` is accepted."""
    for other in (None, "shop", object()):
        with pytest.raises(ConfigurationError, match="Redelivery takes a Celery app, not"):
            Redelivery(other)
    Celery("current").set_current()
    assert Redelivery(current_app).app.main == "current"
