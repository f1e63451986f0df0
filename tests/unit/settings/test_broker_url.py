"""The broker's address is parsed by kombu's own function, and a kombu without that function causes no failure."""

from __future__ import annotations

import pytest
from celery import Celery

from redelivery.errors import ConfigurationError
from redelivery.middleware.brokers import broker_url


def test_a_kombu_that_reads_a_database_otherwise_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kombu's function a wrong database is an error of one line. Without it nothing is refused here."""
    app = Celery(broker="redis://localhost:6379/shop")
    with pytest.raises(ConfigurationError, match="number of a database"):
        broker_url.check_broker_url(app)
    monkeypatch.setattr(broker_url, "READ_DATABASE", None)
    broker_url.check_broker_url(app)
