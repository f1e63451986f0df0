"""The broker's address, read without asking anybody: what is wrong with it is one line, where Celery ends in a traceback."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from celery import signals
from kombu.transport.redis import Channel

from redelivery.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["check_before_start", "check_broker_url"]

#: kombu's own reading of the address's last part; it asks nothing of its channel.
READ_DATABASE: Any = Channel._prepare_virtual_host  # noqa: SLF001 - see above
LOOKS_LIKE = "broker_url looks like redis://host:6379/0, rediss://… or redis+socket:///path"


def check_broker_url(app: Celery) -> None:
    """Read the addresses that the app connects to. Raises `ConfigurationError`; no password is in what it says."""
    for connect in (app.connection_for_read, app.connection_for_write):
        try:
            made = connect()
            made.get_transport_cls()
            if (made.transport_cls or "").startswith("redis") and "://" not in (made.hostname or ""):
                READ_DATABASE(None, made.virtual_host)
        except (KeyError, ValueError) as exc:
            msg = f"broker_url cannot be used: {exc.args[0]}; {LOOKS_LIKE}"
            raise ConfigurationError(msg) from exc
        except ImportError as exc:
            msg = f"broker_url cannot be used: {exc}; install what kombu needs to speak to such a broker"
            raise ConfigurationError(msg) from exc


def check_before_start(app: Celery) -> None:
    """From here on, a worker of this app that cannot read its broker's address ends with one line."""

    def check(instance: Any = None, **_: Any) -> None:
        if getattr(instance, "app", None) is not app:
            return
        try:
            check_broker_url(app)
        except ConfigurationError as exc:
            sys.stderr.write(f"redelivery: error: {exc}\n")
            raise SystemExit(1) from None

    signals.celeryd_init.connect(check, weak=False, dispatch_uid=f"redelivery:{id(app)}")
